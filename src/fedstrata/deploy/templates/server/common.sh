# What the other scripts begin with: where they are, their settings, the programs, the folder for what they write.
here=$(cd "$(dirname "$0")" && pwd)
set -a
. "$here/server.env"
set +a
mkdir -p "$STATE"
PATH=$BIN:$PATH:/usr/sbin
