#!/bin/sh
# The SuperLink. It listens on this machine alone; nodes come through the proxy (proxy.sh).
set -eu
. "$(dirname "$0")/common.sh"
export FLWR_HOME="$STATE/superlink"
mkdir -p "$FLWR_HOME"
exec flower-superlink --host 127.0.0.1 --port @LINK_PORT@ \
    --ssl-ca-certfile "$here/tls/ca.crt" --ssl-certfile "$here/tls/server.crt" --ssl-keyfile "$here/tls/server.key" \
    --enable-supernode-auth \
    --database "$STATE/superlink.db" \
    --disable-runtime-dependency-installation
