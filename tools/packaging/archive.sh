#!/usr/bin/env bash
# Packs a binary for a release: the program, its completions, manual pages, the systemd unit and the licences, with the
# archive's checksum beside it.
#
#     tools/packaging/archive.sh BINARY TARGET FOLDER     the target as Rust names it
set -euo pipefail
binary="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
target="$2"
mkdir -p "$3"
folder="$(cd "$3" && pwd)"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

name="gantry-$target"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
inside="$place/$name"
mkdir -p "$inside/completions"
cp "$binary" "$inside/"
for pair in bash:gantry.bash zsh:_gantry fish:gantry.fish powershell:gantry.ps1; do
    "$binary" completions "${pair%%:*}" >"$inside/completions/${pair##*:}"
done
"$binary" man "$inside/man/man1"
cp README.md LICENSE-MIT LICENSE-APACHE tools/packaging/gantry.service "$inside/"
tar -czf "$folder/$name.tar.gz" -C "$place" "$name"
cd "$folder"
if command -v sha256sum >/dev/null; then
    sha256sum "$name.tar.gz" >"$name.tar.gz.sha256"
else
    shasum -a 256 "$name.tar.gz" >"$name.tar.gz.sha256"
fi
echo "$folder/$name.tar.gz"
