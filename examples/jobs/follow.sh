#!/usr/bin/env bash
# Prints the progress of a job with curl: follow.sh URL
set -euo pipefail
head=$(mktemp)
trap 'rm "$head"' EXIT
offset=-1
# Each request waits until there is more, and says where the next one begins.
until grep -qi '^stream-closed: true' "$head"; do
  curl -sS --fail -D "$head" "$1&live=long-poll&offset=$offset" |
    sed -E 's/\},?/}\n/g' | sed -nE 's/.*"done":([0-9]+),"of":([0-9]+).*/\1 of \2/p'
  offset=$(sed -nE 's/^stream-next-offset: (.*)\r$/\1/Ip' "$head")
done
