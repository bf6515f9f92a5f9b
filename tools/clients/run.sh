#!/usr/bin/env bash
# Lets clients that other people wrote, as their registries have them, run a job on the embedded model. README.md says which.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 PATH_TO_GANTRY" >&2; exit 2; }
[ -x "$1" ] || { echo "$1 is no program: build it with 'cargo build -p gantry'" >&2; exit 2; }
gantry=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${CARGO_TARGET_DIR:-$here/../../target}/clients
mkdir -p "$place"
place=$(cd "$place" && pwd)

# comfy-script needs nest_asyncio2 and does not say so.
[ -x "$place/python/bin/python" ] || python3 -m venv "$place/python"
timeout 600 "$place/python/bin/python" -m pip install --quiet --disable-pip-version-check \
    comfy-cli==1.23.0 "comfy-script[default]==0.6.1" nest_asyncio2 comfy-api-simplified==1.6.0 comfy-sdk==0.5.0 pillow
timeout 300 npm install --silent --no-audit --no-fund --prefix "$place" @saintno/comfyui-sdk@0.3.1

base=$(mktemp -d "${TMPDIR:-/tmp}/gantry-clients.XXXXXX")
server=""
clean_up() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$base"
}
trap clean_up EXIT

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$gantry" serve --cpu --base-directory "$base" --port "$port" >"$place/server.log" 2>&1 &
server=$!
for _ in $(seq 300); do
    grep -q "To see the GUI go to:" "$place/server.log" && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done

# Each gets a folder of its own, a seed of its own (so that nothing is known beforehand) and two minutes.
code=0
seed=0
for client in comfy-cli comfy-script comfy-api-simplified comfyui-sdk comfy-sdk; do
    seed=$((seed + 1))
    folder=$base/of/$client
    mkdir -p "$folder"
    workflow=$folder/workflow.json
    "$place/python/bin/python" "$here/workflow.py" "$here/../../examples/api/text-to-image.json" "$client" "$seed" >"$workflow"
    command=("$place/python/bin/python" "$here/$client.py")
    [ "$client" != comfyui-sdk ] || command=(node "$here/comfyui-sdk.mjs" "$place/node_modules/@saintno/comfyui-sdk")
    start=$SECONDS
    if (cd "$folder" && PATH=$place/python/bin:$PATH HOME=$folder timeout 120 "${command[@]}" "$port" "$workflow" "$folder/picture.png") \
        >"$place/$client.log" 2>&1 && "$place/python/bin/python" "$here/check.py" "$folder/picture.png" "$base/output" "$client"; then
        echo "$client: a picture after $((SECONDS - start)) s"
    else
        echo "$client: FAILED; its last lines:" >&2
        tail -n 30 "$place/$client.log" >&2
        code=1
    fi
done
if ! kill -0 "$server" 2>/dev/null; then
    echo "the server did not live to the end" >&2
    code=1
fi
[ "$code" -eq 0 ] || tail -n 30 "$place/server.log" >&2
exit "$code"
