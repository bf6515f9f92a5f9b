#!/usr/bin/env bash
# Starts a server with a token from the environment and from a file, asks rightly and wrongly, and looks for the token in what
# the server wrote, in the list of processes and in every file that it left. (The answers of all routes: see the test
# `no_answer_holds_the_token` in crates/server/tests/protocol/secret.rs.)
set -euo pipefail

[ $# -eq 1 ] && [ -x "$1" ] || { echo "usage: $0 PATH_TO_GANTRY" >&2; exit 2; }
gantry=$1
token=tell-nobody-$RANDOM$RANDOM
base=$(mktemp -d "${TMPDIR:-/tmp}/gantry-token.XXXXXX")
secret=$(mktemp "${TMPDIR:-/tmp}/gantry-secret.XXXXXX")
server=""
clean_up() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    rm -rf "$base" "$secret"
}
trap clean_up EXIT
echo "$token" >"$secret"

# not_in WHAT FILE...: fails if one of the files has the token.
not_in() {
    local what=$1
    shift
    if grep -rlF -- "$token" "$@" >&2; then
        echo "the token is in $what" >&2
        exit 1
    fi
}

# ask STATUS ARGUMENT...: a request must be answered so, and its answer must not hold the token.
ask() {
    local wanted=$1 got
    shift
    got=$(curl -s -D "$base.head" -o "$base.body" -w '%{http_code}' "$@")
    [ "$got" = "$wanted" ] || { echo "$*: $got, not $wanted" >&2; exit 1; }
    not_in "the answer to $*" "$base.head" "$base.body"
    rm -f "$base.head" "$base.body"
}

# try HOW ARGUMENT...: one server.
try() {
    local how=$1 port url log=$base.log
    shift
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    url=http://127.0.0.1:$port
    "$@" serve --cpu --verbose DEBUG --base-directory "$base" --port "$port" "${flags[@]}" >"$log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        grep -q "To see the GUI go to:" "$log" && break
        sleep 0.1
    done
    ask 401 "$url/system_stats"
    ask 401 -H "Authorization: Bearer wrong" "$url/system_stats"
    ask 200 -H "Authorization: Bearer $token" "$url/system_stats"
    ask 200 "$url/system_stats?token=$token"
    ask 303 -H "Accept: text/html" "$url/?token=$token"
    ask 400 -H "Authorization: Bearer $token" -d '{' "$url/prompt"
    ask 404 -H "Authorization: Bearer $token" "$url/nothing/here?token=$token"
    # The environment of a process is its owner's alone; its command line is everybody's.
    not_in "the list of processes ($how)" "/proc/$server/cmdline"
    kill "$server"
    wait "$server" || true
    server=""
    not_in "the log ($how)" "$log"
    not_in "a file that the server left ($how)" "$base"
    rm -f "$log"
}

flags=()
try "from the environment" env GANTRY_TOKEN="$token" "$gantry"
flags=(--token-file "$secret")
try "from a file" "$gantry"
echo "the token is told to nobody"
