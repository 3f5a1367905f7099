#!/usr/bin/env bash
# Makes sure of the C compiler that cgo needs to load NVML: installed when root on Debian, else asked for.
# What the local cluster needs, test/localcluster brings by itself.
set -euo pipefail

compiles() {
  echo '#include <stdlib.h>' | "${CC:-gcc}" -x c -fsyntax-only - 2>/dev/null
}

compiles && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "A C compiler with the C library's headers is missing. On Debian: apt-get install gcc libc6-dev" >&2
  exit 1
fi
echo "Installing Debian packages: gcc libc6-dev" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null
compiles || { echo "gcc and libc6-dev are installed, but ${CC:-gcc} still compiles nothing." >&2; exit 1; }
