"""What tests of packages share: a container of an image, a network for several of them, a client. Without a container engine: buildah with chroot
isolation runs a command, a network namespace a container has its own address, /etc/hosts has the names.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time

SUBNET = "10.231.77"
WITHIN_S = 90


def say(text):
    print(f"  {text}", flush=True)


def run(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done


def await_that(what, done):
    end = time.monotonic() + WITHIN_S
    last = None
    while time.monotonic() < end:
        try:
            last = done()
            if last:
                return last
        except (OSError, ReplyError, EOFError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"not within {WITHIN_S} s: {what} (last: {last!r})")


class ReplyError(Exception):
    pass


class Client:
    """One command, one reply (RESP2)."""

    def __init__(self, host, port, password, authority=None, name=None):
        self.socket = socket.create_connection((host, port), timeout=20)
        if authority:
            context = ssl.create_default_context(cafile=authority)
            self.socket = context.wrap_socket(self.socket, server_hostname=name)
        self.file = self.socket.makefile("rb")
        self.ask("AUTH", password)

    def ask(self, *words):
        frame = b"*%d\r\n" % len(words)
        for word in words:
            frame += b"$%d\r\n%s\r\n" % (len(str(word).encode()), str(word).encode())
        self.socket.sendall(frame)
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the connection was closed")
        kind, text = line[:1], line[1:-2].decode()
        if kind == b"-":
            return ReplyError(text)
        if kind == b"+":
            return text
        if kind == b":":
            return int(text)
        if text == "-1":
            return None
        if kind == b"$":
            return self.file.read(int(text) + 2)[:-2].decode()
        return [self.read() for _ in range(int(text))]


def forward(listen, target):
    """Publishes a port."""
    server = socket.create_server(listen)

    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def accept():
        while True:
            client, _ = server.accept()
            try:
                upstream = socket.create_connection(target, timeout=5)
                upstream.settimeout(None)
            except OSError:
                client.close()
                continue
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def field(pairs, name):
    return dict(zip(pairs[::2], pairs[1::2]))[name]


def make_network():
    """A bridge, in the namespaces that the test was started in."""
    # Names of namespaces are files: in a place of our own.
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "containers", "type", "bridge")
    run("ip", "addr", "add", f"{SUBNET}.1/24", "dev", "containers")
    run("ip", "link", "set", "containers", "up")


class Container:
    """One container of an image. Set volumes, environment, user and is_read_only before the start."""

    def __init__(self, name, image, number, work):
        self.name, self.work = name, work
        self.address = f"{SUBNET}.{10 + number}"
        self.config = json.loads(run("buildah", "inspect", "--type", "image", image).stdout)["Docker"]["config"]
        self.container = run("buildah", "from", "--pull-never", image).stdout.strip()
        # For health checks: buildah 1.28 loses its count of mounts where two commands run in one container.
        self.second = run("buildah", "from", "--pull-never", image).stdout.strip()
        self.volumes = {}
        self.environment = dict(line.split("=", 1) for line in self.config.get("Env") or [])
        self.user = self.config["User"]
        self.is_read_only = False
        self.process = None
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"veth{number}", "master", "containers", "up")
        run("ip", "-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")

    def inside(self, words, container=None):
        """A command in the container: its user, no rights, and where asked for a read-only root."""
        assert self.user and self.user.split(":")[0] not in ("0", "root"), f"{self.name} runs as root"
        name, _, group = self.user.partition(":")
        groups = "--clear-groups" if group else "--init-groups"
        drop = ["setpriv", f"--reuid={name}", f"--regid={group or name}", groups, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        remount = "mount -o remount,bind,ro / && " if self.is_read_only else ""
        options = ["--no-hosts", "--volume", f"{self.work}/hosts:/etc/hosts:ro"]
        for source, target in self.volumes.items():
            options += ["--volume", f"{source}:{target}"]
        for pair in self.environment.items():
            options += ["--env", "=".join(pair)]
        return [
            *("ip", "netns", "exec", self.name, "buildah", "run", "--isolation", "chroot", "--user", "0:0"),
            *("--cap-add", "CAP_SYS_ADMIN", *options, container or self.container, "--"),
            *("sh", "-c", f'{remount}exec "$@"', "sh", *drop, *words),
        ]

    def start(self, words):
        log = open(self.log_path(), "ab")
        self.process = subprocess.Popen(self.inside(words), stdout=log, stderr=log, start_new_session=True)

    def log_path(self):
        return os.path.join(self.work, f"{self.name}.log")

    def pid(self):
        """Of the program itself, not of what started it."""
        for pid in run("ip", "netns", "pids", self.name).stdout.split():
            try:
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(("redfence", "redis-")):
                    return int(pid)
            except OSError:
                pass
        return None

    def end(self, number):
        os.kill(self.pid(), number)
        return self.process.wait(timeout=30)

    def check_confinement(self):
        pid = self.pid()
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status") if ":\t" in line)
        assert int(status["Uid"].split()[0]) != 0, "runs as root"
        assert int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, "has capabilities"
        assert status["NoNewPrivs"].strip() == "1"
        root = next(line.split() for line in open(f"/proc/{pid}/mountinfo") if line.split()[4] == "/")
        if self.is_read_only:
            assert "ro" in root[5].split(","), f"the root of {self.name} is not read-only: {root}"
            tried = run(*self.inside(["sh", "-c", ": >/tmp/x"], self.second), check=False)
            assert tried.returncode != 0 and "Read-only" in tried.stderr, tried

    def remove(self, show_log):
        if self.process and self.process.poll() is None and self.pid():
            self.end(9)
        if show_log and os.path.exists(self.log_path()):
            print(f"--- {self.name}", open(self.log_path(), errors="replace").read()[-3000:], sep="\n")
        run("buildah", "rm", self.container, self.second, check=False)
