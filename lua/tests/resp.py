"""A small RESP2/RESP3 client: bytes out, replies in, nothing hidden. Used by every test here."""
import socket


class ReplyError(Exception):
    """An error reply. Returned as a value by `send`, raised by `must`."""


class NullArray:
    """`*-1`, which no LOCK.* command may answer."""

    def __repr__(self):
        return "<null array>"


NULL_ARRAY = NullArray()


def as_bytes(word):
    if isinstance(word, bytes):
        return word
    return str(word).encode()


def encode(words):
    parts = [b"*%d\r\n" % len(words)]
    for word in map(as_bytes, words):
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


class Client:
    def __init__(self, port, protocol=2):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb")
        self.protocol = protocol
        if protocol == 3:
            self.must("HELLO", 3)

    def close(self):
        self.file.close()
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, *words):
        self.sock.sendall(encode(words))
        return self.read()

    def must(self, *words):
        reply = self.send(*words)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._bulk(int(rest))
        if kind in (b"*", b">", b"~"):
            return NULL_ARRAY if rest == b"-1" else [self.read() for _ in range(int(rest))]
        if kind == b"%":
            return {self.read(): self.read() for _ in range(int(rest))}
        if kind == b"_":
            return None
        if kind == b"#":
            return rest == b"t"
        if kind == b",":
            return float(rest)
        raise ValueError(f"unknown reply {line!r}")

    def _bulk(self, length):
        if length < 0:
            return None
        data = self.file.read(length + 2)
        return data[:-2]
