#!/usr/bin/env bash
# Builds the page anew and compares it, byte for byte, with what is part of the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

place=$(mktemp -d "${TMPDIR:-/tmp}/gantry-dashboard.XXXXXX")
trap 'rm -rf "$place"' EXIT
./build.sh "$place"
if ! diff -rq "$place" ../crates/server/src/dashboard; then
    echo "the page in crates/server/src/dashboard is not what its sources give: run dashboard/build.sh" >&2
    exit 1
fi
