#!/bin/sh
# The SuperNode of @NAME@: it calls @HOST@:@PORT@, fetches work, trains on the data that node.toml names, and sends
# back what the method sends. Nobody calls it.
#
# After it was killed, the server takes it to be still there for about a minute and refuses it (exit code 1). systemd
# tries again by itself; by hand, wait and start it again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
set -a
. "$here/node.env"
set +a
export PATH="$BIN:$PATH" FLWR_HOME="$STATE/flwr"
mkdir -p "$FLWR_HOME" "$STATE/memory"
{ cat "$here/node.toml"; printf 'memory = "%s"\n' "$STATE/memory"; } > "$STATE/node.toml"
exec flower-supernode --superlink @HOST@:@PORT@ --root-certificates "$here/ca.crt" \
    --auth-supernode-private-key "$here/node.key" \
    --host 127.0.0.1 --port "$PORT" \
    --node-config "$STATE/node.toml"
