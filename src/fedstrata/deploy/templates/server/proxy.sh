#!/bin/sh
# nginx with the nginx.conf beside this file, in the foreground: the only door to the SuperLink from outside.
set -eu
. "$(dirname "$0")/common.sh"
mkdir -p "$STATE/proxy/tmp"
exec nginx -e stderr -p "$STATE/proxy" -c "$here/nginx.conf" "$@"
