"""What both programs share: HTTP and WebSocket by hand, only to this machine, and a look at a process's memory."""

import asyncio
import base64
import os
import socket
import struct

HOST = "127.0.0.1"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def rss_mib(pid):
    """The memory of a process that lies in RAM, in MiB; None without a pid or if the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def request_bytes(method, target, headers=(), body=b"", host=None):
    """An HTTP/1.1 request as bytes; the target is sent as it is, dots, escapes and all."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host or HOST}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape") + body


class Connection:
    """One HTTP connection that is kept open, with blocking calls."""

    def __init__(self, port, timeout=10):
        self.port, self.timeout, self.socket, self.rest = port, timeout, None, b""

    def open(self):
        self.socket = socket.create_connection((HOST, self.port), self.timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def close(self):
        if self.socket:
            self.socket.close()
            self.socket = None

    def exchange(self, data, limit=1 << 28):
        """Sends bytes and reads one answer: its status, its headers and its body."""
        if self.socket is None:
            self.open()
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # A server may answer and close before it has read a body that it refuses.
            pass
        head = self._until(b"\r\n\r\n")
        status, headers = parse_head(head)
        if status in (204, 304) or 100 <= status < 200:
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunked()
        elif "content-length" in headers:
            body = self._exactly(min(int(headers["content-length"]), limit))
        else:
            body = self._to_end(limit)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    def _fill(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection before its answer was whole")
        self.rest += data

    def _until(self, mark):
        while mark not in self.rest:
            self._fill()
        head, self.rest = self.rest.split(mark, 1)
        return head

    def _exactly(self, count):
        while len(self.rest) < count:
            self._fill()
        body, self.rest = self.rest[:count], self.rest[count:]
        return body

    def _chunked(self):
        body = b""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size)
            self._exactly(2)
        self._until(b"\r\n")
        return body

    def _to_end(self, limit):
        try:
            while len(self.rest) < limit:
                self._fill()
        except ConnectionError:
            pass
        body, self.rest = self.rest, b""
        self.close()
        return body


def parse_head(head):
    """The status and the headers (names in lower case) of an answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.split()[1]), headers


def frame(opcode, payload, masked=True, final=True, reserved=0, length=None):
    """A WebSocket frame. `length` claims another length than the payload has."""
    length = len(payload) if length is None else length
    head = bytearray([(0x80 if final else 0) | reserved << 4 | opcode])
    flag = 0x80 if masked else 0
    if length < 126:
        head.append(flag | length)
    elif length < 1 << 16:
        head.append(flag | 126)
        head += struct.pack(">H", length)
    else:
        head.append(flag | 127)
        head += struct.pack(">Q", length)
    if masked:
        key = os.urandom(4)
        head += key
        payload = bytes(byte ^ key[index % 4] for index, byte in enumerate(payload))
    return bytes(head) + payload


def upgrade_headers():
    """The headers that turn a request into a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    return [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
    ]


class WebSocket(asyncio.Protocol):
    """A WebSocket client. `heard(opcode, payload)` is called for each whole message, `ended()` when it is over."""

    def __init__(self, target, heard, ended):
        self.target, self.heard, self.ended = target, heard, ended
        self.buffer, self.is_open, self.parts = bytearray(), False, []
        self.opened = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(request_bytes("GET", self.target, upgrade_headers()))

    def connection_lost(self, error):
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the server closed the connection during the handshake"))
        self.ended()

    def data_received(self, data):
        self.buffer += data
        if not self.is_open:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            status, _ = parse_head(bytes(self.buffer[:end]))
            del self.buffer[: end + 4]
            if status != 101:
                self.opened.set_exception(ConnectionError(f"the server answered {status}, not 101"))
                self.transport.close()
                return
            self.is_open = True
            self.opened.set_result(None)
        self._frames()

    def _frames(self):
        buffer, position = self.buffer, 0
        while len(buffer) - position >= 2:
            first, length = buffer[position], buffer[position + 1] & 0x7F
            start = position + 2
            if length >= 126:
                width = 2 if length == 126 else 8
                if len(buffer) - start < width:
                    break
                length = int.from_bytes(buffer[start : start + width], "big")
                start += width
            if len(buffer) - start < length:
                break
            position = start + length
            self._frame(first & 0x0F, bool(first & 0x80), bytes(buffer[start:position]))
        del buffer[:position]

    def _frame(self, opcode, final, payload):
        if opcode == PING:
            self.transport.write(frame(PONG, payload))
        elif opcode == CLOSE:
            self.transport.close()
        elif opcode in (0, TEXT, BINARY):
            self.parts.append((opcode, payload))
            if final:
                kind, self.parts, payload = self.parts[0][0], [], b"".join(part for _, part in self.parts)
                self.heard(kind, payload)


async def connect_websocket(port, target, heard, ended):
    """Opens a WebSocket."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: WebSocket(target, heard, ended), HOST, port)
    await asyncio.wait_for(protocol.opened, 30)
    return protocol
