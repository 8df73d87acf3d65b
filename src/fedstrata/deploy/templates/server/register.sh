#!/bin/sh
# Tell the SuperLink the public keys in keys/, as far as it does not know them. Only nodes with these keys are let in.
# $STATE/registered/NAME then holds the node's number; to shut a node out:
#   ./flwr.sh supernode unregister "$(cat $STATE/registered/NAME)"
# A node that was shut out stays so. Where the SuperLink's database is begun anew, remove $STATE/registered too.
set -eu
. "$(dirname "$0")/common.sh"
mkdir -p "$STATE/registered"

register() {
    "$here/flwr.sh" supernode register "$1" --format json || true
}

tries=20
for key in "$here"/keys/*.pub; do
    name=$(basename "$key" .pub)
    if [ -s "$STATE/registered/$name" ]; then
        echo "$name is registered already"
        continue
    fi
    said=$(register "$key")
    while [ "$tries" -gt 0 ] && echo "$said" | grep -q "SuperLink is unavailable"; do # it takes some seconds to start
        tries=$((tries - 1))
        [ "$tries" -ne 10 ] || echo "The SuperLink does not answer yet; is superlink.sh running?" >&2
        sleep 1
        said=$(register "$key")
    done
    number=$(echo "$said" | sed -n 's/.*"node-id": *"\{0,1\}\([0-9][0-9]*\).*/\1/p')
    if [ -z "$number" ]; then
        echo "$name was not registered: $said" >&2
        exit 1
    fi
    echo "$number" > "$STATE/registered/$name"
    echo "$name is registered"
done
