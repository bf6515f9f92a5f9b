#!/usr/bin/env bash
# Compiles the program for Windows and macOS without linking it: every place that needs another system has its
# alternative there, or this fails. zig is the C compiler for SQLite, the video decoder and the cryptography of TLS.
#
#     tools/packaging/other-systems.sh [TARGET...]
#
# Needs Rust with rustup, Python 3 with venv, and the registries of both. Nothing that it compiles can be run here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(x86_64-pc-windows-gnu aarch64-apple-darwin)
work="${CARGO_TARGET_DIR:-target}/ci/other-systems"
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
python3 -m venv "$work"
"$work/bin/python" -m pip install --quiet --disable-pip-version-check "cargo-zigbuild==0.24.*" "ziglang==0.17.*"
for target in "${targets[@]}"; do
    rustup target add "$target"
    PATH="$(cd "$work/bin" && pwd):$PATH" cargo-zigbuild check --locked --profile packed --target "$target" -p gantry
    echo "$target: compiles"
done
