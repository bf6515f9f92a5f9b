"""A hostile client on this machine: does the server stay up, stay inside its folders, and refuse without failing?

    gantry serve --testing-nodes --port 8188 --base-directory BASE &
    python3 tools/load/hostile.py --port 8188 --pid $! --base BASE --seconds 3600

Runs each phase once, then goes on with random requests until `--seconds` are over. What counts as a finding: an answer of
500 or more, no answer at all where one is due, a body that has a file's content from outside the folders, a file that
appears outside of them, a foreign Origin that is let in, an upload over the limit that is taken, memory that grows, a
server that does not answer a harmless request in between. Prints a JSON object and exits with 1 if there are findings.
Only the standard library is needed; it talks to 127.0.0.1 only, and writes one file of its own in BASE and beside it,
which it removes.
"""

import argparse
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import corpus
from corpus import dumps, with_api
from wire import HOST, Connection, frame, parse_head, request_bytes, rss_mib, upgrade_headers

ANSWER_SECONDS = 30


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8188)
    parser.add_argument("--pid", type=int, help="the server's process, to measure its memory")
    parser.add_argument("--base", type=Path, help="the server's base directory, to look for stray files")
    parser.add_argument("--seconds", type=float, default=60, help="for how long random requests go on in the end")
    parser.add_argument("--requests", type=int, default=10**9, help="at most this many requests in each phase")
    parser.add_argument("--phases", help="only these, separated by commas")
    parser.add_argument("--bomb-bytes", type=int, default=1 << 20, help="the size of JSON bombs")
    parser.add_argument("--slow-clients", type=int, default=200)
    parser.add_argument("--upload-bytes", type=int, default=10 * 10**9, help="what an oversize upload claims")
    parser.add_argument("--max-growth-mib", type=float, default=128)
    parser.add_argument("--settle", type=float, default=15, help="seconds to wait for memory to return")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Enough(Exception):
    """The count of requests of a phase is reached."""


class Attack:
    """One run: the connection, what was counted and what was found."""

    def __init__(self, given):
        self.given, self.port = given, given.port
        self.authority = f"{HOST}:{given.port}"
        self.connection = Connection(given.port, ANSWER_SECONDS)
        self.token = f"stray{os.getpid()}x{int(time.time())}"
        self.secret = f"secret-{self.token}-{random.getrandbits(64):x}"
        self.phase, self.requests, self.last_request = "", 0, given.requests
        self.statuses, self.findings, self.seen, self.is_stuck = {}, [], Counter(), False

    # What is found ---------------------------------------------------------------------------------------------------

    def find(self, kind, what, detail=""):
        """Notes a finding; of one kind and place, the first three."""
        key = (self.phase, kind, what.split("?")[0][:30])
        self.seen[key] += 1
        if self.seen[key] <= 3:
            self.findings.append({"phase": self.phase, "kind": kind, "request": what[:300], "detail": str(detail)[:500]})

    def count(self, status):
        self.requests += 1
        self.statuses.setdefault(self.phase, Counter())[str(status)] += 1

    # Requests --------------------------------------------------------------------------------------------------------

    def send(self, method, target, headers=(), body=b"", host=None, expect=None, may_drop=False, note=""):
        """Sends a request and judges the answer; its status, or None. The note says in findings what was sent."""
        if self.requests >= self.last_request:
            raise Enough
        what = f"{method} {target} {note}".strip()
        try:
            data = request_bytes(method, target, headers, body, host or self.authority)
        except UnicodeEncodeError:
            return None
        try:
            status, _, answer = self.exchange(data)
        except (OSError, ValueError, IndexError) as error:
            self.connection.close()
            self.count("none")
            if not may_drop:
                self.find("no answer", what, repr(error))
            return None
        self.count(status)
        if status >= 500:
            self.find(str(status), what, answer[:300])
        if expect and status not in expect:
            self.find("unexpected status", what, f"{status}, not {expect}")
        if self.secret.encode() in answer:
            self.find("a file from outside is served", what)
        elif b"root:x:0:0" in answer:
            self.find("/etc/passwd is served", what)
        return status

    def exchange(self, data):
        try:
            return self.connection.exchange(data)
        except (ConnectionError, BrokenPipeError):
            # A connection that was kept open may have been closed meanwhile, or closed at once by what was sent:
            # a second try on a new one tells the two apart.
            self.connection.close()
            return self.connection.exchange(data)

    def get(self, target, **more):
        return self.send("GET", target, **more)

    def post_json(self, route, value, method="POST", **more):
        body = dumps(value)
        return self.send(method, route, [("Content-Type", "application/json")], body, note=str(body[:150]), **more)

    def raw(self, data, wait=5, what="raw bytes"):
        """Sends bytes over a connection of their own; all that comes back."""
        answer = b""
        try:
            with socket.create_connection((HOST, self.port), wait) as sock:
                sock.settimeout(wait)
                try:
                    sock.sendall(data)
                except OSError:
                    pass
                while len(answer) < 1 << 20:
                    part = sock.recv(1 << 16)
                    if not part:
                        break
                    answer += part
        except OSError:
            pass
        try:
            status = parse_head(answer.split(b"\r\n\r\n")[0])[0]
        except (ValueError, IndexError):
            status = "none"
        self.count(status)
        if isinstance(status, int) and status >= 500 and status not in (501, 505):
            self.find(str(status), what, answer[:300])
        return answer

    def judge_alive(self):
        """A harmless request and a harmless WebSocket must be answered, and soon."""
        for attempt in range(2):
            try:
                begun = time.monotonic()
                fresh = Connection(self.port, ANSWER_SECONDS)
                status, _, _ = fresh.exchange(request_bytes("GET", "/prompt", host=self.authority))
                fresh.close()
                taken = time.monotonic() - begun
                if status != 200 or taken > 5:
                    self.find("the server is not well", "GET /prompt", f"{status} after {taken:.1f} s")
                sock, status = self.open_websocket()
                sock.close()
                if status != 101:
                    self.find("the server is not well", "GET /ws", status)
                return True
            except (OSError, ValueError) as error:
                reason = error
                time.sleep(1)
        self.find("the server does not answer", "GET /prompt", repr(reason))
        return False

    def open_websocket(self, headers=(), target="/ws?clientId=hostile", host=None):
        """A socket after the handshake, and the handshake's status."""
        sock = socket.create_connection((HOST, self.port), ANSWER_SECONDS)
        sock.sendall(request_bytes("GET", target, [*upgrade_headers(), *headers], host=host or self.authority))
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 1 << 16:
            part = sock.recv(1)
            if not part:
                break
            head += part
        return sock, parse_head(head)[0] if head else 0

    # Files -----------------------------------------------------------------------------------------------------------

    def canaries(self):
        """Files with a secret, outside of all folders that are served."""
        if not self.given.base:
            return []
        base = self.given.base.resolve()
        return [place / f"canary-{self.token}.txt" for place in (base, base.parent)]

    def plant(self):
        for canary in self.canaries():
            canary.write_text(self.secret)

    def uproot(self):
        for canary in self.canaries():
            canary.unlink(missing_ok=True)

    def judge_files(self):
        """No file that carries the token may lie outside the folders for it."""
        places = [Path("/"), Path("/tmp"), Path("/etc"), Path("/root"), Path.home(), Path.cwd()]
        strays = {path for place in places for path in listed(place, recurse=False) if self.token in path.name}
        if self.given.base:
            base = self.given.base.resolve()
            for parent in base.parents:
                strays |= {path for path in listed(parent, recurse=False) if self.token in path.name}
            folders = [base / name for name in ("input", "output", "temp", "user")]
            for path in listed(base, recurse=True):
                if self.token in path.name and not any(path.is_relative_to(folder) for folder in folders):
                    strays.add(path)
        for stray in strays - set(self.canaries()):
            self.find("a file outside its folder", str(stray))


def listed(place, recurse):
    """What lies in a folder. Folders may be nested deeper than Python's own walks can go."""
    found, folders = [], [str(place)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found.append(Path(entry.path))
                    if recurse and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            pass
    return found


# The phases ----------------------------------------------------------------------------------------------------------


def multipart(fields):
    """A form: {name: value} or {name: (file name, bytes)}."""
    mark = "----hostile7f3b"
    body = b""
    for name, value in fields.items():
        body += f'--{mark}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        if isinstance(value, tuple):
            body += b'; filename="' + value[0].encode("utf-8", "replace") + b'"\r\nContent-Type: image/png'
            value = value[1]
        body += b"\r\n\r\n" + (value.encode("utf-8", "replace") if isinstance(value, str) else value) + b"\r\n"
    return [("Content-Type", f"multipart/form-data; boundary={mark}")], body + f"--{mark}--\r\n".encode()


def described(form):
    return str({name: value[0] if isinstance(value, tuple) else value for name, value in form.items()})[:200]


def traversal_reads(attack):
    leaves = [f"canary-{attack.token}.txt", "etc/passwd"]
    names = [name for leaf in leaves for name in corpus.climbing(leaf)] + corpus.odd_names()
    for name in names:
        for text in corpus.escapes(name):
            for kind in ("output", "input", "temp"):
                attack.get(f"/view?filename={text}&type={kind}")
            attack.get(f"/view?filename=a.png&subfolder={text}")
            attack.get(f"/view?filename=canary-{attack.token}.txt&subfolder={text}&type=temp")
            attack.get(f"/view?filename=a.png&type={text}")
            for target in ("/userdata?dir={}", "/userdata?dir={}&recurse=true&full_info=true", "/v2/userdata?path={}",
                           "/view_metadata/loras?filename={}", "/view_metadata/{}?filename=a.safetensors",
                           "/api/view?filename={}"):  # fmt: skip
                attack.get(target.format(text))
            for route in corpus.GET_ROUTES:
                if "{}" in route:
                    attack.get(route.replace("{}", text))
            attack.get(f"/experiment/models/preview/loras/0/{text}")
            attack.get(f"/experiment/models/preview/loras/{text}/a.png")
            attack.get("/prompt", headers=[("Comfy-User", name)] if "\n" not in name and "\0" not in name else [])


def traversal_writes(attack):
    picture = tiny_png()
    names = corpus.climbing(attack.token + ".png") + corpus.climbing(f"tmp/{attack.token}.png")
    for name in names + corpus.odd_names():
        for route in ("/upload/image", "/api/upload/image", "/upload/mask"):
            forms = [
                {"image": (name, picture)},
                {"image": (attack.token + ".png", picture), "subfolder": name},
                {"image": (attack.token + ".png", picture), "type": name},
                {"image": (name, picture), "overwrite": "true", "type": "temp"},
            ]
            if route.endswith("mask"):
                reference = {"filename": name, "subfolder": "", "type": "output"}
                forms.append({"image": (attack.token + ".png", picture), "original_ref": json.dumps(reference)})
                reference = {"filename": "a.png", "subfolder": name, "type": name}
                forms.append({"image": (attack.token + ".png", picture), "original_ref": json.dumps(reference)})
            for form in forms:
                headers, body = multipart(form)
                attack.send("POST", route, headers, body, note=described(form))
        for text in corpus.escapes(name):
            attack.send("POST", f"/userdata/{text}", body=b"hostile")
            attack.send("POST", f"/userdata/{text}?overwrite=false&full_info=true", body=b"hostile")
            attack.send("POST", f"/userdata/{attack.token}.json", body=b"hostile")
            attack.send("POST", f"/userdata/{attack.token}.json/move/{text}")
            attack.send("POST", f"/userdata/{text}/move/{attack.token}-2.json?overwrite=true")
            attack.send("DELETE", f"/userdata/{text}")
            attack.post_json(f"/settings/{text}", 1)
        attack.post_json("/settings", {name: 1})
        prompt = corpus.good_prompt()
        prompt["2"] = {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": name}}
        attack.post_json("/prompt", {"prompt": prompt})
        prompt["1"] = {"class_type": "LoadImage", "inputs": {"image": name}}
        attack.post_json("/prompt", {"prompt": prompt})
    wait_for_queue(attack)
    for canary in attack.canaries():
        if not canary.exists() or canary.read_text() != attack.secret:
            attack.find("a file outside was changed", str(canary))


def tiny_png():
    return bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060000000040001"
        "f61738550000000049454e44ae426082"
    )


def wait_for_queue(attack):
    """Lets what was accepted run to its end. A queue that was stuck once is not waited for that long again."""
    deadline = time.monotonic() + (3 if attack.is_stuck else 60)
    while time.monotonic() < deadline:
        try:
            _, _, body = attack.exchange(request_bytes("GET", "/prompt", host=attack.authority))
            if json.loads(body)["exec_info"]["queue_remaining"] == 0:
                return
        except (OSError, ValueError, KeyError, TypeError):
            attack.connection.close()
        time.sleep(0.2)
    attack.is_stuck = True
    attack.find("the queue does not become empty", "GET /prompt")
    attack.post_json("/queue", {"clear": True})
    attack.send("POST", "/interrupt")


def json_bombs(attack):
    for name, body in corpus.bombs(attack.given.bomb_bytes).items():
        for method, route in corpus.JSON_ROUTES:
            for target in with_api(route):
                attack.send(method, target, [("Content-Type", "application/json")], body, note=name)
        attack.send("POST", "/userdata/bomb.json", body=body, note=name)
        attack.send("DELETE", "/userdata/bomb.json")


def wrong_types(attack):
    for number, (method, route, value) in enumerate(corpus.wrong_bodies()):
        attack.post_json(route, value, method=method)
        if number % 50 == 0:
            wait_for_queue(attack)
    for prompt in corpus.wrong_prompts():
        attack.post_json("/prompt", {"prompt": prompt})
    wait_for_queue(attack)
    for route, keys in corpus.QUERIES.items():
        for key in keys:
            for value in corpus.ODD_QUERY_VALUES:
                for target in with_api(route):
                    attack.get(f"{target}?{key}={value}")
                    attack.get(f"{target}?{key}={value}&{key}={value}")


def bad_http(attack):
    host = f"Host: {attack.authority}\r\n".encode()
    cases = [
        b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n" + host + b"\r\n", b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), bytes(range(256)) * 16,
        b"GET /prompt HTTP/1.1\r\n" + host * 2 + b"\r\n",
        b"GET /prompt HTTP/1.1\r\n" + host + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /prompt HTTP/1.1\r\n" + host + b"".join(b"X-%d: 1\r\n" % n for n in range(5000)) + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n{}",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}\r\n0\r\n\r\n",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
        b"POST /prompt HTTP/1.1\r\n" + host + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
        b"POST /upload/image HTTP/1.1\r\n" + host + b"Content-Type: multipart/form-data\r\nContent-Length: 4\r\n\r\nabcd",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    ]  # fmt: skip
    for number, case in enumerate(cases):
        attack.raw(case, wait=2, what=f"bad HTTP {number}: {case[:60]!r}")
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        for route in corpus.GET_ROUTES:
            attack.raw(request_bytes(method, route.replace("{}", "a"), [("Connection", "close")], host=attack.authority),
                       wait=5, what=f"{method} {route}")  # fmt: skip
    for value in ("bytes=0-", "bytes=-1", "bytes=5-2", "bytes=0-0,1-1,2-2", "bytes=99999999999999999999-", "bytes=", "x", "bytes=" + "0-0," * 5000):
        attack.get("/view?filename=example.png&type=input", headers=[("Range", value)])
    broken_forms(attack)


def broken_forms(attack):
    headers, whole = multipart({"image": ("a.png", tiny_png()), "type": "input"})
    for cut in range(0, len(whole), 13):
        attack.send("POST", "/upload/image", headers, whole[:cut])
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="' + "b" * 5000 + '"',
                 "multipart/mixed; boundary=----hostile7f3b", "application/json", "text/plain"):  # fmt: skip
        attack.send("POST", "/upload/image", [("Content-Type", kind)], whole)
    headers, body = multipart({f"field{number}": "x" for number in range(5000)})
    attack.send("POST", "/upload/image", headers, body)


def foreign_origins(attack):
    evil = ["http://evil.example", "https://evil.example:8188", f"http://127.0.0.1:{attack.port + 1}", f"http://localhost:{attack.port}",
            "http://127.0.0.1.evil.example", f"http://evil.example/{attack.authority}", "chrome-extension://abc",
            "null", "file://", "file:///home/a/page.html", "file://127.0.0.1"]  # fmt: skip
    for origin in evil:
        for route in corpus.GET_ROUTES:
            for target in with_api(route.replace("{}", "a")):
                attack.get(target, headers=[("Origin", origin)], expect=(403,))
        for method, route in corpus.JSON_ROUTES:
            attack.send(method, route, [("Origin", origin)], b"{}", expect=(403,))
        for target in ("/ws", "/api/ws"):
            try:
                sock, status = attack.open_websocket([("Origin", origin)], target)
                sock.close()
                attack.count(status)
                if status != 403:
                    attack.find("a foreign Origin is let in", f"{target} from {origin}", status)
            except (OSError, ValueError) as error:
                attack.find("no answer", f"{target} from {origin}", repr(error))
    for origin in (f"http://{attack.authority}", "http://127.0.0.1"):
        attack.get("/prompt", headers=[("Origin", origin)], expect=(200,))
    for host in ("evil.example", "evil.example:80", "[::1]", "[", "127.0.0.1:99999", "127.0.0.1:abc", "a" * 3000, "\u00fc", "a b", ""):
        for origin in (None, "http://evil.example", f"http://{host}", "null", "::::", "http://["):
            attack.get("/prompt", host=host, headers=[("Origin", origin)] if origin else [], may_drop=True)
    unclear_hosts(attack)


def unclear_hosts(attack):
    """Requests that do not say clearly which host they mean."""
    host, other = f"Host: {attack.authority}\r\n", "Host: evil.example\r\n"
    cases = [
        ("/prompt HTTP/1.1", "", 400), ("/prompt HTTP/1.1", host * 2, 400), ("/prompt HTTP/1.1", host + other, 400),
        ("/prompt HTTP/1.0", host * 2, 400), ("/prompt HTTP/1.1", other, 403), ("/prompt HTTP/1.1", host, 200),
        (f"http://{attack.authority}/prompt HTTP/1.1", other, 400), ("http://evil.example/prompt HTTP/1.1", host, 400),
        ("http://evil.example/prompt HTTP/1.1", other, 403), (f"http://{attack.authority}/prompt HTTP/1.1", host, 200),
    ]  # fmt: skip
    for line, headers, expected in cases:
        what = f"GET {line} with {headers!r}"
        answer = attack.raw(f"GET {line}\r\n{headers}Connection: close\r\n\r\n".encode(), what=what)
        if not answer.startswith((f"HTTP/1.1 {expected}".encode(), f"HTTP/1.0 {expected}".encode())):
            attack.find("unexpected status", what, f"{answer[:12]!r}, not {expected}")


def bad_frames(attack):
    text = b'{"type":"feature_flags","data":{}}'
    cases = {
        "not masked": frame(1, text, masked=False),
        "reserved bits": frame(1, text, reserved=7),
        "unknown opcode": frame(3, b"x"),
        "unknown control": frame(11, b"x"),
        "long ping": frame(9, b"x" * 200),
        "ping in parts": frame(9, b"x", final=False),
        "a part of nothing": frame(0, b"x"),
        "text in text": frame(1, b"a", final=False) + frame(1, b"b"),
        "claims 2^62 bytes": frame(1, b"x", length=1 << 62),
        "claims 2^63 bytes": frame(2, b"x", length=1 << 63),
        "claims 4 GB": frame(2, b"x" * 1000, length=1 << 32),
        "no UTF-8": frame(1, b"\xff\xfe\xfd"),
        "half a character": frame(1, "\u00e4".encode()[:1]),
        "deep JSON": frame(1, b"[" * 500_000),
        "JSON of the wrong type": frame(1, b"5") + frame(1, b'{"type":5}') + frame(1, b'{"type":"feature_flags","data":[]}'),
        "large message": frame(1, b'{"type":"' + b"a" * (4 << 20) + b'"}'),
        "binary": frame(2, os.urandom(5000)),
        "close of one byte": frame(8, b"\x03"),
        "close with a bad code": frame(8, struct.pack(">H", 1) + b"x"),
        "close with no UTF-8": frame(8, struct.pack(">H", 1000) + b"\xff"),
        "after a close": frame(8, b"") + frame(1, text),
        "many pings": frame(9, b"p") * 5000,
        "many empty parts": frame(1, b"", final=False) + frame(0, b"", final=False) * 20_000,
        "many messages": frame(1, text) * 5000,
        "rubbish": os.urandom(100_000),
        "half a frame": frame(1, text)[:5],
    }
    for name, data in cases.items():
        for target in ("/ws?clientId=hostile", "/api/ws"):
            try:
                sock, status = attack.open_websocket(target=target)
            except (OSError, ValueError) as error:
                attack.find("no answer", f"{target} for {name}", repr(error))
                continue
            attack.count(status)
            try:
                sock.settimeout(1)
                sock.sendall(data)
                while sock.recv(1 << 16):
                    pass
            except OSError:
                pass
            sock.close()
    handshakes(attack)


def handshakes(attack):
    for name in corpus.odd_names():
        attack.raw(request_bytes("GET", "/ws?clientId=" + quote(name, safe=""), [*upgrade_headers()], host=attack.authority),
                   wait=0.3, what=f"/ws?clientId={name[:30]!r}")  # fmt: skip
    good = dict(upgrade_headers())
    for key in list(good):
        for value in ("", "x", "\t", "13, 8"):
            headers = [*{**good, key: value}.items(), ("Connection", "close")]
            attack.raw(request_bytes("GET", "/ws", headers, host=attack.authority), wait=0.3, what=f"/ws with {key}: {value!r}")


def slow_clients(attack):
    """Connections that send almost nothing, and WebSockets that read nothing, while others must be served."""
    held = []
    starts = [
        b"GET /prompt HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"POST /prompt HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{",
        b"POST /upload/image HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        b"Content-Length: 1000000\r\n\r\n--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"slow.png\"\r\n\r\n",
        b"POST /userdata/slow.json HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"",
    ]  # fmt: skip
    for number in range(attack.given.slow_clients):
        try:
            sock = socket.create_connection((HOST, attack.port), 5)
            sock.sendall(starts[number % len(starts)])
            held.append(sock)
        except OSError as error:
            attack.find("no connection beside slow clients", f"the {number}th", repr(error))
            break
    for _ in range(min(20, attack.given.slow_clients)):
        try:
            sock, _ = attack.open_websocket(target=f"/ws?clientId=deaf{len(held)}")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            held.append(sock)
        except (OSError, ValueError) as error:
            attack.find("no WebSocket beside slow clients", "/ws", repr(error))
    for number in range(100):
        prompt = corpus.good_prompt()
        prompt["1"]["inputs"]["height"] = 8 + number
        attack.post_json("/prompt", {"prompt": prompt, "client_id": f"deaf{len(held) - 1}"}, expect=(200,))
        for sock in held[number :: 100]:
            try:
                sock.send(b"a")
            except OSError:
                pass
    attack.judge_alive()
    wait_for_queue(attack)
    for sock in held:
        sock.close()
    attack.send("DELETE", "/userdata/slow.json")


def oversize_uploads(attack):
    """Uploads that claim far more than the limit must be refused before they were sent whole."""
    form, _ = multipart({})
    start = b'------hostile7f3b\r\nContent-Disposition: form-data; name="image"; filename="%s.png"\r\n\r\n' % attack.token.encode()
    length = attack.given.upload_bytes
    for method, route in [*corpus.JSON_ROUTES, ("POST", "/upload/image"), ("POST", "/upload/mask"), ("POST", "/userdata/huge.json")]:
        lines = [f"{method} {route} HTTP/1.1", f"Host: {attack.authority}", *(f"{name}: {value}" for name, value in form)]
        claimed = "\r\n".join([*lines, f"Content-Length: {length}"]).encode() + b"\r\n\r\n" + start
        stream(attack, f"{method} {route}, {length} bytes claimed", claimed, length, chunked=False)
        if "upload" in route or "userdata" in route:
            chunked = "\r\n".join([*lines, "Transfer-Encoding: chunked"]).encode() + b"\r\n\r\n"
            stream(attack, f"{method} {route}, in chunks", chunked, length, chunked=True)
    attack.send("DELETE", "/userdata/huge.json")
    if attack.given.base:
        for path in listed(attack.given.base.resolve(), recurse=True):
            if (attack.token in path.name or path.name == "huge.json") and path.is_file() and path.stat().st_size > 1 << 20:
                attack.find("an oversize upload stays on disk", str(path), path.stat().st_size)


def stream(attack, what, head, length, chunked):
    """Sends a body piece by piece until the server answers or hangs up; more than a gigabyte must never go through."""
    piece = b"\0" * (1 << 20)
    if chunked:
        piece = b"%x\r\n" % len(piece) + piece + b"\r\n"
    sent, answer = 0, b""
    try:
        with socket.create_connection((HOST, attack.port), 20) as sock:
            sock.sendall(head)
            sock.setblocking(False)
            view, deadline = memoryview(piece), time.monotonic() + 20
            while sent < min(length, 1 << 30) and time.monotonic() < deadline:
                try:
                    answer += sock.recv(1 << 16)
                    break
                except BlockingIOError:
                    pass
                try:
                    count = sock.send(view)
                    sent += count
                    view = view[count:] or memoryview(piece)
                except BlockingIOError:
                    time.sleep(0.01)
            sock.setblocking(True)
            sock.settimeout(5)
            answer += sock.recv(1 << 16)
    except OSError:
        pass
    try:
        status = parse_head(answer.split(b"\r\n\r\n")[0])[0]
    except (ValueError, IndexError):
        status = "none"
    attack.count(status)
    if isinstance(status, int) and (status < 400 or status >= 500):
        attack.find("an oversize body is not refused", what, f"{status} after {sent >> 20} MiB")
    elif sent >= 1 << 30 or (not chunked and sent > 256 << 20):
        attack.find("an oversize body is read", what, f"{sent >> 20} MiB were taken before {status}")


def random_requests(attack):
    """Anything, anywhere, until the time is over."""
    chance = random.Random(attack.given.seed)
    names = corpus.climbing(attack.token) + corpus.odd_names() + ["a.png", "workflows/a.json", "loras", "output"]
    bodies = list(corpus.bombs(20_000).values()) + [dumps(value) for value in corpus.WRONG_VALUES]
    prompts = list(corpus.wrong_prompts())[:200]
    deadline = time.monotonic() + attack.given.seconds
    number = 0
    while time.monotonic() < deadline:
        number += 1
        route = chance.choice(corpus.GET_ROUTES)
        while "{}" in route:
            route = route.replace("{}", chance.choice(list(corpus.escapes(chance.choice(names)))), 1)
        target = chance.choice(with_api(route))
        if chance.random() < 0.5:
            key = chance.choice([key for keys in corpus.QUERIES.values() for key in keys])
            target += ("&" if "?" in target else "?") + f"{key}={quote(chance.choice(names), safe='')}"
        pick = chance.random()
        if pick < 0.5:
            attack.get(target)
        elif pick < 0.7:
            attack.post_json("/prompt", {"prompt": chance.choice(prompts), "client_id": chance.choice(names)})
        elif pick < 0.9:
            method, route = chance.choice(corpus.JSON_ROUTES)
            attack.send(method, chance.choice(with_api(route)), body=chance.choice(bodies))
        else:
            headers, body = multipart({"image": (chance.choice(names), chance.choice(bodies)), "subfolder": chance.choice(names)})
            body = bytearray(body)
            for _ in range(chance.randrange(4)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            attack.send("POST", "/upload/image", headers, bytes(body))
        if number % 500 == 0:
            if not attack.judge_alive():
                return
            wait_for_queue(attack)
            attack.post_json("/history", {"clear": True})


PHASES = [
    traversal_reads,
    traversal_writes,
    json_bombs,
    wrong_types,
    bad_http,
    foreign_origins,
    bad_frames,
    slow_clients,
    oversize_uploads,
    random_requests,
]


def judge_memory(attack, before):
    memory = {"before": before}
    deadline = time.monotonic() + attack.given.settle
    while (after := rss_mib(attack.given.pid)) is not None:
        memory |= {"after": after, "growth": after - before}
        if memory["growth"] <= attack.given.max_growth_mib:
            break
        if time.monotonic() > deadline:
            attack.find("memory has grown", f"{before:.0f} to {after:.0f} MiB")
            break
        time.sleep(0.5)
    else:
        if attack.given.pid is not None:
            attack.find("the server's process is gone", str(attack.given.pid))
    return memory


def main(given):
    attack = Attack(given)
    before = rss_mib(given.pid)
    attack.plant()
    begun, seconds = time.monotonic(), {}
    try:
        for phase in PHASES:
            if given.phases and phase.__name__ not in given.phases.split(","):
                continue
            attack.phase, start = phase.__name__, time.monotonic()
            attack.last_request = attack.requests + given.requests
            try:
                phase(attack)
            except Enough:
                pass
            seconds[attack.phase] = round(time.monotonic() - start, 1)
            if not attack.judge_alive():
                break
        attack.phase, attack.last_request = "end", attack.requests + 100
        attack.judge_files()
    finally:
        attack.uproot()
    clear = [("/history", {"clear": True}), ("/queue", {"clear": True}), ("/free", {"unload_models": True, "free_memory": True})]
    for route, body in clear:
        attack.post_json(route, body, may_drop=True)
    memory = judge_memory(attack, before)
    return {
        "requests": attack.requests,
        "seconds": round(time.monotonic() - begun, 1),
        "phases": {name: {"seconds": seconds.get(name), "statuses": counts} for name, counts in attack.statuses.items()},
        "memory_mib": memory,
        "finding_count": sum(attack.seen.values()),
        "findings": attack.findings,
    }


if __name__ == "__main__":
    report = main(options())
    print(json.dumps(report, indent=2))
    sys.exit(1 if report["findings"] else 0)
