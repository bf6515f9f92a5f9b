#!/usr/bin/env bash
# Tests of the page's arithmetic, in Node.js.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

place=$(mktemp -d "${TMPDIR:-/tmp}/gantry-dashboard.XXXXXX")
trap 'rm -rf "$place"' EXIT
npx --no-install esbuild test/*.test.ts --bundle --platform=node --format=esm --log-level=warning \
    --outdir="$place" --out-extension:.js=.mjs
node --test "$place"/*.mjs >"$place/log" || { cat "$place/log"; exit 1; }
grep -E '^# (pass|fail)' "$place/log" || true
