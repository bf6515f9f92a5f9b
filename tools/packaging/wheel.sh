#!/usr/bin/env bash
# Builds the wheel for Linux against an old glibc, checks which symbols its binary needs, and tries it as a user would who
# has Python and no Rust: a fresh virtual environment, `pip install`, `gantry demo`. Then the same binary as an archive, by
# install.sh from a local server.
#
#     tools/packaging/wheel.sh [PROFILE]     the profile of cargo: packed if nothing is said, release for a release
#
# The wheel and the archive are left in target/packages. Needs Rust, git, Python 3 with venv, curl and the Python
# registry (maturin, and zig as the linker and C compiler, are installed into a folder below target).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

profile="${1:-packed}"
glibc="2.28" # of 2018: Debian 10, Ubuntu 20.04, RHEL 8 and what came after
target="$(uname -m)-unknown-linux-gnu"
work="${CARGO_TARGET_DIR:-target}/ci/packaging"
packages="${CARGO_TARGET_DIR:-target}/packages"
server=""
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
rm -rf "$work" "$packages"
mkdir -p "$work" "$packages"
work="$(cd "$work" && pwd)"
packages="$(cd "$packages" && pwd)"

fail() {
    echo "wheel.sh: $*" >&2
    exit 1
}

python3 -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check "maturin==1.16.*" "ziglang==0.17.*"

GANTRY_COMMIT="${GANTRY_COMMIT:-$(git rev-parse --short=9 HEAD 2>/dev/null || true)}"
export GANTRY_COMMIT
PATH="$work/tools/bin:$PATH" maturin build --zig --locked --profile "$profile" --target "$target" \
    --compatibility "manylinux_${glibc/./_}" --out "$packages"
wheel="$(ls "$packages"/*.whl)"

# A machine without Rust: nothing of this shell's environment but the system's programs.
fresh() {
    env -i HOME="$work/home" PATH="$work/user/bin:$work/home/.local/bin:/usr/bin:/bin" "$@"
}
mkdir -p "$work/home" "$work/place"
fresh python3 -m venv "$work/user"
fresh sh -c 'command -v cargo rustc' && fail "there is Rust on the PATH: this proves nothing"
fresh "$work/user/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
binary="$work/user/bin/gantry"

python3 tools/packaging/symbols.py "$binary" "$glibc"
# A check that cannot fail is none: every binary needs more than glibc 2.1 had.
if python3 tools/packaging/symbols.py "$binary" 2.1 >/dev/null 2>&1; then
    fail "symbols.py finds nothing newer than glibc 2.1, which cannot be"
fi

try() {
    rm -f "$work/place/demo.png"
    (cd "$work/place" && fresh gantry demo --cpu "a red circle above a blue square")
    head -c 8 "$work/place/demo.png" | cmp -s - <(printf '\x89PNG\r\n\x1a\n') || fail "demo.png is no PNG"
}
try
version="$(fresh gantry version)"
echo "$version"
case "$version" in *"$GANTRY_COMMIT"*) ;; *) fail "the version does not say the commit $GANTRY_COMMIT" ;; esac
for shell in bash zsh fish powershell; do
    fresh gantry completions "$shell" | grep -q gantry || fail "no completions for $shell"
done
(cd "$work/place" && fresh gantry man pages)
[ -s "$work/place/pages/gantry-serve.1" ] || fail "there is no manual page of serve"

# The archive of a release, and install.sh from a server that has it under a release's addresses.
number="$("$work/tools/bin/python" -c 'import sys; print(sys.argv[1].split("/")[-1].split("-")[1])' "$wheel")"
tools/packaging/archive.sh "$binary" "$target" "$packages"
releases="$work/releases/download/v$number"
mkdir -p "$releases"
cp "$packages"/*.tar.gz "$packages"/*.sha256 "$releases"
python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$work/releases" >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 50); do
    port="$(sed -n 's/.*port \([0-9]*\) .*/\1/p' "$work/server.log")"
    [ -n "$port" ] && break
    sleep 0.1
done
address="http://127.0.0.1:$port"
rm -rf "$work/user"
fresh sh -c 'command -v gantry' && fail "there is still a gantry"
fresh env GANTRY_RELEASES="$address" GANTRY_VERSION="v$number" sh install.sh
try
# A damaged archive is not installed.
rm -rf "$work/home/.local"
archive="$(ls "$releases"/*.tar.gz)"
printf 'x' >>"$archive"
if fresh env GANTRY_RELEASES="$address" GANTRY_VERSION="v$number" sh install.sh 2>"$work/refused"; then
    fail "install.sh takes a damaged archive"
fi
grep -q "checksum" "$work/refused" || fail "install.sh does not say that the checksum is wrong"
[ ! -e "$work/home/.local/bin/gantry" ] || fail "install.sh leaves a binary of a damaged archive"
echo "the wheel and the archive work without Rust: $(basename "$wheel")"
