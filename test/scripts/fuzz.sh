#!/usr/bin/env bash
# Runs every fuzz test of the module for a while (10s): go test fuzzes one at a time.
set -euo pipefail
GO=${GO:-go}

"$GO" test -list '^Fuzz' ./... | awk '
  /^Fuzz/ { names[count++] = $1 }
  $1 == "ok" { for (i = 0; i < count; i++) print $2, names[i]; count = 0 }' |
  while read -r package name; do
    "$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "${1:-10s}" "$package" </dev/null
  done
