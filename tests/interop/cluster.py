"""Three real nodes as separate processes, and the control port by which a runner kills and restarts them. Used by `run`."""

import os
import pathlib
import shutil
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time

HOST = "127.0.0.1"
READY_S_MAX = 20
LIVING = set()  # every cluster that runs, for stop_all


class Trouble(Exception):
    """Something the person at the keyboard must read."""


def stop_all():
    for nodes in list(LIVING):
        nodes.stop()


def free_ports(count):
    """Ports nobody listens on now. Somebody may take one before we do: the caller starts again with others."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def ask(address, *words, timeout_s=6):
    """One command over RESP2: integers, strings, lists; an error reply is raised as Trouble."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        request = b"*%d\r\n" % len(words)
        for word in words:
            request += b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode())
        connection.sendall(request)
        return read_reply(connection.makefile("rb"))


def read_reply(stream):
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise OSError("the connection ended within a reply")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise Trouble(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"+":
        return rest.decode()
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2].decode()
    if kind == b"*":
        return None if rest == b"-1" else [read_reply(stream) for _ in range(int(rest))]
    raise Trouble(f"a reply of unknown kind {line!r}")


class Cluster:
    """Three nodes of `redfence serve`. `addresses`, `redlock` and `control` are for the runner."""

    attempts = 5

    def __init__(self, binary, logs):
        self.binary = binary
        self.logs = logs
        self.processes = {}
        self.changing = threading.RLock()  # held by whoever starts or kills a node
        self.stopped = False
        self.data = tempfile.mkdtemp(prefix="redfence-interop-data-")
        LIVING.add(self)
        try:
            for attempt in range(1, self.attempts + 1):
                try:
                    self.start()
                    break
                except Trouble:
                    self.kill_all()
                    if attempt == self.attempts:
                        raise
            self.server = ControlServer(self)
            self.control = self.server.address
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        shutil.rmtree(self.data, ignore_errors=True)
        os.makedirs(self.data)
        ports = free_ports(9)
        self.addresses = [f"{HOST}:{port}" for port in ports[0:3]]
        self.peers = [f"{HOST}:{port}" for port in ports[3:6]]
        self.redlock = [f"{HOST}:{port}" for port in ports[6:9]] if has_redlock(self.binary) else []
        for index in range(3):
            self.launch(index)
        for index in range(3):
            self.await_ready(index)
        self.leader()

    def command(self, index):
        members = ",".join(f"{i + 1}={peer}" for i, peer in enumerate(self.peers))
        words = [self.binary, "serve", "--id", str(index + 1), "--listen", self.addresses[index],
                 "--peer-listen", self.peers[index], "--cluster", members, "--data", os.path.join(self.data, str(index + 1))]
        return words + (["--redlock-listen", self.redlock[index]] if self.redlock else [])

    def launch(self, index):
        if self.stopped:
            raise Trouble("the cluster was stopped")
        log = open(pathlib.Path(self.logs) / f"node{index + 1}.log", "ab")
        with log:
            self.processes[index] = subprocess.Popen(self.command(index), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                     cwd=self.data, start_new_session=True)

    def await_ready(self, index):
        """Until the node answers. Its `ready` line comes at the same moment; an answer is what a client sees."""
        deadline = time.monotonic() + READY_S_MAX
        while True:
            if self.processes[index].poll() is not None:
                raise Trouble(f"node {index + 1} ended with {self.processes[index].returncode}: {self.last_words(index)}")
            try:
                if ask(self.addresses[index], "PING", timeout_s=1) == "PONG":
                    return
            except (OSError, Trouble):
                pass
            if time.monotonic() > deadline:
                raise Trouble(f"node {index + 1} does not serve after {READY_S_MAX} s: {self.last_words(index)}")
            time.sleep(0.02)

    def last_words(self, index):
        text = (pathlib.Path(self.logs) / f"node{index + 1}.log").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"

    def living(self):
        return [index for index, process in self.processes.items() if process.poll() is None]

    def leader(self):
        """The index of the node that leads and knows a quorum behind it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for index in self.living():
                try:
                    info = ask(self.addresses[index], "LOCK.CLUSTER", "INFO", timeout_s=1)
                except (OSError, Trouble):
                    continue
                info = dict(zip(info[::2], info[1::2]))
                if info.get("role") == "leader" and info.get("quorum") == 1:
                    return index
            time.sleep(0.02)
        raise Trouble("no node leads after 10 s")

    # What the control port offers.

    def do_leader(self):
        return [self.addresses[self.leader()]]

    def do_followers(self):
        leader = self.leader()
        return [self.addresses[index] for index in self.living() if index != leader]

    def do_kill_leader(self):
        with self.changing:
            index = self.leader()
            self.processes[index].send_signal(signal.SIGKILL)
            self.processes[index].wait(10)
            return [self.addresses[index]]

    def do_restart_dead(self):
        with self.changing:
            dead = [index for index in self.processes if self.processes[index].poll() is not None]
            for index in dead:
                self.launch(index)
            for index in dead:
                self.await_ready(index)
            self.leader()
            return [self.addresses[index] for index in dead]

    def kill_all(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.processes = {}

    def stop(self):
        LIVING.discard(self)
        if getattr(self, "server", None):
            self.server.stop()
        # A restart may be under way for a runner that is gone already: nothing may be started behind our back.
        self.stopped = True
        with self.changing:
            self.kill_all()
        shutil.rmtree(self.data, ignore_errors=True)


class PlainRedis(Cluster):
    """Not a cluster: one redis-server with the module at all three addresses, three of them as Redlock masters, none with a disk.
    Shows what a Redis answers; the checks that ask for fences of plain keys, or for a leader's memory, fail."""

    def start(self):
        self.redlock = [f"{HOST}:{port}" for port in free_ports(3)]
        self.addresses = self.redlock
        for index in range(3):
            self.launch(index)
        for index in range(3):
            self.await_ready(index)
        self.addresses = [self.redlock[0]] * 3

    def command(self, index):
        host, port = self.redlock[index].rsplit(":", 1)
        module = pathlib.Path(self.binary).parent / "libredfence_module.so"
        return ["redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--loadmodule", str(module)]

    def leader(self):
        return 0


class Split(Cluster):
    """Not a cluster: three nodes that do not know each other. Every check that asks two of them must fail."""

    def command(self, index):
        return [self.binary, "serve", "--listen", self.addresses[index], "--data", os.path.join(self.data, str(index + 1))]

    def leader(self):
        return self.living()[0]


class Amnesia(Cluster):
    """A cluster in which everybody forgets everything when the leader dies. The checks that kill it must fail, and no others."""

    def do_kill_leader(self):
        with self.changing:
            leader = self.leader()
            self.kill_all()
            shutil.rmtree(self.data)
            os.makedirs(self.data)
            for index in range(3):
                self.launch(index)
            self.processes[leader].kill()
            self.processes[leader].wait()
            for index in self.living():
                self.await_ready(index)
            return [self.addresses[leader]]


HAS_REDLOCK = {}
PROBING = threading.Lock()


def has_redlock(binary):
    """Whether the binary opens a Redlock listener: a node of its own is started with one and asked there."""
    with PROBING:
        if binary not in HAS_REDLOCK:
            HAS_REDLOCK[binary] = probe_redlock(binary)
        return HAS_REDLOCK[binary]


def probe_redlock(binary):
    listen, redlock = (f"{HOST}:{port}" for port in free_ports(2))
    with tempfile.TemporaryDirectory(prefix="redfence-interop-probe-") as data:
        node = subprocess.Popen([binary, "serve", "--listen", listen, "--redlock-listen", redlock, "--data", data],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + READY_S_MAX
            while node.poll() is None and time.monotonic() < deadline:
                try:
                    if ask(listen, "PING", timeout_s=1) == "PONG":
                        return ask(redlock, "PING", timeout_s=1) == "PONG"
                except (OSError, Trouble):
                    time.sleep(0.02)
            return False
        finally:
            node.kill()
            node.wait()


class ControlServer:
    """The control port: one line in, one line out."""

    def __init__(self, nodes):
        actions = {"leader": nodes.do_leader, "followers": nodes.do_followers, "kill-leader": nodes.do_kill_leader,
                   "restart-dead": nodes.do_restart_dead}

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                for line in self.rfile:
                    action = actions.get(line.decode(errors="replace").strip())
                    try:
                        answer = f"ok {' '.join(action())}".strip() if action else f"err unknown command {line!r}"
                    except (Trouble, OSError, subprocess.SubprocessError) as error:
                        answer = f"err {error}"
                    self.wfile.write(answer.replace("\n", " ").encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self.server = Server((HOST, 0), Handler)
        self.address = f"{HOST}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
