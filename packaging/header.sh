#!/bin/sh
# streamd @VERSION@ for Linux on @MACHINE@, with everything it needs but the C library. The first start unpacks what
# follows this script into a directory of its own below XDG_CACHE_HOME (~/.cache), the others find it there.
set -eu
if [ -z "${XDG_CACHE_HOME:-}${HOME:-}" ]; then
  echo "streamd unpacks itself below XDG_CACHE_HOME or HOME: set one of them" >&2
  exit 2
fi
kept=${XDG_CACHE_HOME:-$HOME/.cache}/streamd
tree=$kept/@KEY@
if [ ! -d "$tree" ]; then
  mkdir -p "$kept"
  unpacked=$(mktemp -d "$kept/unpacking.XXXXXX")
  trap 'rm -rf "$unpacked"' EXIT
  tail -n +@LINES@ "$0" | tar -xzf - -C "$unpacked"
  # Before it gets its name it is on disk, and of two that start at once one is taken.
  sync -f "$unpacked" 2>/dev/null || sync
  mv -T "$unpacked" "$tree" 2>/dev/null || [ -d "$tree" ]
  trap - EXIT
  rm -rf "$unpacked"
fi
exec "$tree/bin/python3" -I "$tree/bin/streamd" "$@"
