#!/bin/sh
# Flower's command for this SuperLink, e.g.  ./flwr.sh supernode list   ./flwr.sh list   ./flwr.sh log RUN
# It works on this machine alone; from another: ssh -L @LINK_PORT@:127.0.0.1:@LINK_PORT@ @HOST@
set -eu
. "$(dirname "$0")/common.sh"
export FLWR_HOME="$STATE/flwr"
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:@LINK_PORT@"
root-certificates = "$here/tls/ca.crt"
END
exec flwr "$@"
