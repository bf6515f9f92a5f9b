#!/usr/bin/env bash
# Runs the server tests of ComfyUI's own suite against Gantry. README.md says how and what for.
set -euo pipefail

usage() {
    echo "usage: $0 PATH_TO_COMFYUI_0.7.0 PATH_TO_GANTRY [pytest options]" >&2
    echo "  PYTHON=...   the Python to use (default: python3)" >&2
    echo "  PORT=...     the port to listen on (default: a free one)" >&2
    echo "  WORKERS=2    so many workers, each on a simulated device (default: one)" >&2
    echo "  RESULT=FILE  write what passed into this JSON file, beside what it has of other numbers of workers" >&2
    echo "  KEEP=1       keep the temporary folder" >&2
    exit 2
}

[ $# -ge 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
comfy=$(cd "$1" && pwd) || usage
gantry=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
shift 2
[ -f "$comfy/tests/execution/test_execution.py" ] || { echo "$comfy has no tests/execution: is it a ComfyUI checkout?" >&2; exit 2; }
result=${RESULT:+$(cd "$(dirname "$RESULT")" && pwd)/$(basename "$RESULT")}
[ -x "$gantry" ] || { echo "$gantry is no program: build it with 'cargo build --release -p gantry'" >&2; exit 2; }

work=$(mktemp -d "${TMPDIR:-/tmp}/comfy-suite.XXXXXX")
if [ -n "${KEEP:-}" ]; then
    echo "working in $work" >&2
else
    trap 'rm -rf "$work"' EXIT
fi

# The tests themselves, and the one module that they share with ComfyUI's server.
cp -r "$comfy/tests" "$comfy/comfy_execution" "$work/"
[ -f "$comfy/pytest.ini" ] && cp "$comfy/pytest.ini" "$work/"
cp "$here/main.py" "$work/"
mkdir "$work/bin" "$work/output"

# A Python that has what the tests import; an environment of its own if the one that is there has not.
python=${PYTHON:-python3}
if ! "$python" -c 'import pytest, websocket, numpy, PIL' 2>/dev/null; then
    echo "making a Python environment with pytest, websocket-client, numpy and Pillow" >&2
    "$python" -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check 'pytest<10' websocket-client numpy Pillow
fi
python=$(command -v "$python")
# The tests start the server as `python main.py`.
printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" > "$work/bin/python"
chmod +x "$work/bin/python"

paths=$work
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "torch is not installed: using the stand-in for torch.cuda.empty_cache()" >&2
    paths=$paths:$here/stand-ins
fi
port=${PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}

cd "$work"
code=0
GANTRY=$gantry WORKERS=${WORKERS:-1} PATH=$work/bin:$PATH PYTHONPATH=$paths PYTHONDONTWRITEBYTECODE=1 \
    "$python" -m pytest -p no:cacheprovider --junitxml="$work/report.xml" \
    --output_dir "$work/output" --listen 127.0.0.1 --port "$port" "$@" \
    tests/execution/test_execution.py \
    tests/execution/test_async_nodes.py \
    tests/execution/test_progress_isolation.py \
    tests/execution/test_public_api.py || code=$?

"$python" "$here/count.py" "$work/report.xml" "${WORKERS:-1}" ${result:+"$result"}
exit "$code"
