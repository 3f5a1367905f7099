#!/usr/bin/env bash
# Fails where `make generate` changes a file: the generated files in the tree are not those of the sources.
set -euo pipefail

state() {
  find api deployments/manifests docs/reference -type f \
    \( -name 'zz_generated*' -o -name 'switchyard.dev_*.yaml' -o -path 'docs/reference/*' \) -exec sha256sum {} + | sort -k 2
}

before=$(state)
make --no-print-directory -s generate
if ! diff <(echo "$before") <(state) >&2; then
  echo "Generated files were out of date and are now written anew: review and commit them." >&2
  exit 1
fi
