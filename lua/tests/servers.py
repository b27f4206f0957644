"""redis-server processes of the tests' own: a free port, a directory of their own, gone when the test ends."""
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from resp import Client, ReplyError

LUA = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = LUA / "redfence.lua"
SCRIPT = LUA / "redfence-script.lua"


def eventually(check, seconds=10, what="the condition"):
    """Polls until `check` answers something true, and answers that."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds} s")
        time.sleep(0.005)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    def __init__(self, *options):
        self.dir = tempfile.mkdtemp(prefix="redfence-lua-")
        self.options = options
        self.process = None
        for _ in range(20):
            self.port = free_port()
            if self.start():
                return
        raise RuntimeError("redis-server does not start: " + (pathlib.Path(self.dir) / "log").read_text()[-2000:])

    def start(self):
        with open(pathlib.Path(self.dir) / "log", "ab") as log:
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir]
            command += ["--save", "", "--appendonly", "no", "--enable-debug-command", "yes", *self.options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return eventually(self._is_up_or_dead) == "up"

    def _is_up_or_dead(self):
        if self.process.poll() is not None:
            return "dead"
        try:
            with Client(self.port) as client:
                return "up" if client.send("PING") == "PONG" else None
        except OSError:
            return None

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def client(self, protocol=2):
        return Client(self.port, protocol)

    def load(self):
        """Loads both forms; answers the script's sha."""
        with self.client() as client:
            client.must("FUNCTION", "LOAD", "REPLACE", LIBRARY.read_bytes())
            return client.must("SCRIPT", "LOAD", SCRIPT.read_bytes())


def is_error(reply, start=""):
    return isinstance(reply, ReplyError) and str(reply).startswith(start)
