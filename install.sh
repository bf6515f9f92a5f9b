#!/bin/sh
# Installs Gantry for this user: the newest release for this system, checked against its checksum, into ~/.local/bin,
# with manual pages and completions. Nothing is run as root, and nothing else is changed.
#
#     GANTRY_RELEASES   the address of the releases; the script that is attached to a release has it in it
#     GANTRY_VERSION    a release, such as v0.1.0; the newest if nothing is said
#     GANTRY_PREFIX     where to install; ~/.local if nothing is said
set -eu

releases="${GANTRY_RELEASES:-@RELEASES@}"
version="${GANTRY_VERSION:-latest}"
prefix="${GANTRY_PREFIX:-$HOME/.local}"

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

case "$releases" in
@*) fail "this copy does not know where releases are: set GANTRY_RELEASES, or take install.sh from a release" ;;
esac
case "$(uname -s)" in
Linux) system="unknown-linux-gnu" ;;
Darwin) system="apple-darwin" ;;
*) fail "there is no binary for $(uname -s); on Windows use pip or the archive of the release" ;;
esac
case "$(uname -m)" in
x86_64 | amd64) machine="x86_64" ;;
aarch64 | arm64) machine="aarch64" ;;
*) fail "there is no binary for $(uname -m); build it with cargo" ;;
esac
if [ "$system" = unknown-linux-gnu ] && ldd --version 2>&1 | grep -qi musl; then
    fail "the binary needs glibc 2.28 or newer, and this system has musl; build it with cargo"
fi

name="gantry-$machine-$system"
if [ "$version" = latest ]; then
    address="$releases/latest/download"
else
    address="$releases/download/$version"
fi

if command -v curl >/dev/null; then
    fetch() { curl --fail --silent --show-error --location --output "$2" "$1"; }
elif command -v wget >/dev/null; then
    fetch() { wget --quiet --output-document "$2" "$1"; }
else
    fail "neither curl nor wget is here"
fi
if command -v sha256sum >/dev/null; then
    sum() { sha256sum "$1" | cut -d ' ' -f 1; }
else
    sum() { shasum -a 256 "$1" | cut -d ' ' -f 1; }
fi

place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
fetch "$address/$name.tar.gz" "$place/archive" || fail "cannot get $address/$name.tar.gz"
fetch "$address/$name.tar.gz.sha256" "$place/sum" || fail "cannot get the checksum of $name.tar.gz"
wanted="$(cut -d ' ' -f 1 "$place/sum")"
[ "$(sum "$place/archive")" = "$wanted" ] || fail "the checksum of $name.tar.gz is wrong: it is damaged; try again"
tar -xzf "$place/archive" -C "$place"
from="$place/$name"

mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
    "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
# Under its name only when it is whole: a running program is replaced, not overwritten.
cp "$from/gantry" "$prefix/bin/.gantry.new"
chmod 755 "$prefix/bin/.gantry.new"
mv -f "$prefix/bin/.gantry.new" "$prefix/bin/gantry"
cp "$from"/man/man1/*.1 "$prefix/share/man/man1/"
cp "$from/completions/gantry.bash" "$prefix/share/bash-completion/completions/gantry"
cp "$from/completions/_gantry" "$prefix/share/zsh/site-functions/_gantry"
cp "$from/completions/gantry.fish" "$prefix/share/fish/vendor_completions.d/gantry.fish"

echo "$("$prefix/bin/gantry" version) is in $prefix/bin"
case ":$PATH:" in
*":$prefix/bin:"*) ;;
*) echo "add it to the PATH:  export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
echo "now: gantry demo"
