#!/bin/sh
# Run the experiment of ../app on the nodes that are online.   ./run.sh [NAME] [key=value ...]
# NAME is that of the run folder, below $STATE/runs; e.g.  ./run.sh first deadline=120.0   ./run.sh first resume=true
set -eu
. "$(dirname "$0")/common.sh"
name=${1:-$(date +%Y%m%d-%H%M%S)}
[ $# -eq 0 ] || shift
mkdir -p "$STATE/runs"
echo "The run folder is $STATE/runs/$name"
exec "$here/flwr.sh" run "$here/../app" --stream --run-config "out=\"$STATE/runs/$name\" $*"
