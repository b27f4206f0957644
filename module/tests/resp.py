"""A small RESP client and a redis-server of one's own, for `run`. Standard library only."""

import os
import shutil
import socket
import subprocess
import tempfile
import time


# How much slower than usual the server is: for runs under valgrind.
PATIENCE = float(os.environ.get("PATIENCE", "1"))


class Error(Exception):
    """An error reply. Raised by `call`, returned by `read`."""


class Client:
    def __init__(self, port, resp3=False):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        if resp3:
            self.call("HELLO", 3)

    def send(self, *words):
        parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        frame = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        self.socket.sendall(frame)

    def read(self, timeout_s=10):
        """One reply. Raises TimeoutError where none comes."""
        self.deadline = time.monotonic() + timeout_s * PATIENCE
        return self._reply()

    def call(self, *words, timeout_s=10):
        self.send(*words)
        reply = self.read(timeout_s)
        if isinstance(reply, Error):
            raise reply
        return reply

    def fails(self, *words):
        """The text of the error this command answers."""
        try:
            reply = self.call(*words)
        except Error as error:
            return str(error)
        raise AssertionError(f"{words} answered {reply!r}, not an error")

    def silent(self, for_s=0.15):
        """Whether no reply comes for a while."""
        try:
            reply = self.read(for_s / PATIENCE)
        except TimeoutError:
            return True
        raise AssertionError(f"unexpected reply {reply!r}")

    def close(self):
        self.socket.close()

    def _fill(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no reply in time")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(65536)
        except socket.timeout:
            raise TimeoutError("no reply in time") from None
        if not data:
            raise ConnectionError("closed by the server")
        self.buffer += data

    def _line(self):
        while b"\r\n" not in self.buffer:
            self._fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def _bytes(self, length):
        while len(self.buffer) < length + 2:
            self._fill()
        data, self.buffer = self.buffer[:length], self.buffer[length + 2 :]
        return data

    def _reply(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Error(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"_":
            return None
        if kind in b"$=":
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind in b"*>~":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        if kind == b"%":
            return {self._reply(): self._reply() for _ in range(int(rest))}
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        raise AssertionError(f"unknown frame {line!r}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A redis-server with the module, on a free port, with a directory of its own."""

    def __init__(self, module, *options):
        self.module, self.options = module, options
        self.directory = tempfile.mkdtemp(prefix="redfence-module-")
        self.clients = []
        self.port = None
        self.start()

    def start(self):
        for _ in range(10):
            self.port = free_port()
            command = [os.environ.get("REDIS_SERVER", "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory]
            command += ["--enable-debug-command", "yes", "--logfile", os.path.join(self.directory, "log")]
            command += ["--save", ""] if "--save" not in self.options else []
            command += list(self.options)
            command += ["--loadmodule", self.module] if self.module else []
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 10 * PATIENCE
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    client = Client(self.port)
                    if client.call("PING") == b"PONG":
                        client.close()
                        return
                except (OSError, Error):
                    time.sleep(0.02)
            self.process.kill()
            self.process.wait()
        raise RuntimeError("redis-server does not start:\n" + self.log())

    def log(self):
        with open(os.path.join(self.directory, "log"), encoding="utf-8", errors="replace") as log:
            return log.read()

    def client(self, resp3=False):
        client = Client(self.port, resp3)
        self.clients.append(client)
        return client

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        for client in self.clients:
            client.close()
        alive = self.process.poll() is None
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        log = self.log()
        shutil.rmtree(self.directory, ignore_errors=True)
        if not alive:
            raise AssertionError("the server died:\n" + log[-3000:])
        if "internal error" in log or "=== REDIS BUG REPORT" in log:
            raise AssertionError("the server's log tells of an error:\n" + log[-3000:])


def until(condition, timeout_s=5, what="the condition"):
    deadline = time.monotonic() + timeout_s * PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError(f"{what} did not come about in {timeout_s} s")
