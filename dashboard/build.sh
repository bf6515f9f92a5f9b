#!/usr/bin/env bash
# Checks the types, tests the arithmetic, and writes the page's files into the server's sources, or into the folder given.
# The same sources always give the same bytes: the tools are pinned in package-lock.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

into=${1:-../crates/server/src/dashboard}

# Nothing of the network is needed once the tools are there.
if ! npm ls --silent >/dev/null 2>&1; then
    npm ci --no-audit --no-fund --ignore-scripts
fi

npx --no-install tsc --project .
./test.sh

mkdir -p "$into"
npx --no-install esbuild src/main.tsx --bundle --minify --format=esm --target=es2023 --charset=utf8 \
    --jsx=automatic --jsx-import-source=preact --legal-comments=none --banner:js='/* With preact, MIT, Copyright (c) 2015-present Jason Miller */' \
    --log-level=warning --outfile="$into/dashboard.js"
npx --no-install esbuild src/page.css --minify --charset=utf8 --log-level=warning --outfile="$into/dashboard.css"
cp src/index.html "$into/index.html"
