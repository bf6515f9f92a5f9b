#!/usr/bin/env bash
# Starts a server in a folder of its own and tries it with many clients, then with hostile ones. README.md says what
# is looked at.
#
#   tools/load/run.sh PATH_TO_GANTRY [OUTPUT_FOLDER]
#
# CLIENTS, PROMPTS and SECONDS_HOSTILE change the numbers; the results are load.json and hostile.json in the folder.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
gantry="$(cd "$(dirname "${1:?the path of the gantry program}")" && pwd)/$(basename "$1")"
out="${2:-$(mktemp -d)}"
mkdir -p "$out"
base="$(mktemp -d)"
server=""
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    rm -rf "$base"
}
trap finish EXIT

"$gantry" serve --cpu --testing-nodes --port 0 --base-directory "$base" >"$out/server.txt" 2>"$out/server.log" &
server=$!
port=""
for _ in $(seq 100); do
    port="$(sed -n 's/.*To see the GUI go to: http:\/\/127.0.0.1:\([0-9]*\).*/\1/p' "$out/server.txt")"
    [ -z "$port" ] || break
    sleep 0.1
done
[ -n "$port" ] || { echo "the server did not start:" >&2; cat "$out/server.log" >&2; exit 1; }

code=0
python3 "$here/load.py" --port "$port" --pid "$server" --clients "${CLIENTS:-200}" --prompts "${PROMPTS:-2000}" \
    --max-p99-ms "${MAX_P99_MS:-50}" >"$out/load.json" || code=1
cat "$out/load.json"
python3 "$here/hostile.py" --port "$port" --pid "$server" --base "$base" --seconds "${SECONDS_HOSTILE:-60}" \
    >"$out/hostile.json" || code=1
cat "$out/hostile.json"
exit "$code"
