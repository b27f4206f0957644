"""Starts every service of a compose file from its image, as a container engine would, and uses them as a user would.

Called by scripts/images, as root, in network, mount and process namespaces of its own. What an engine does is done here with buildah
(chroot isolation) and ip: the image's user, environment, entry point and health check; the file's environment, volumes, secrets,
published ports and read_only; one network namespace a service, with the names of the services in /etc/hosts.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import yaml

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

    def __init__(self, host, port, password):
        self.socket = socket.create_connection((host, port), timeout=20)
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


class Service:
    def __init__(self, name, settings, number, compose, work):
        self.name, self.settings, self.work = name, settings, work
        self.address = f"{SUBNET}.{10 + number}"
        self.image = f"localhost/{settings['build']['target']}"
        self.config = json.loads(run("buildah", "inspect", "--type", "image", self.image).stdout)["Docker"]["config"]
        self.container = run("buildah", "from", "--pull-never", self.image).stdout.strip()
        # For health checks: buildah 1.28 loses its count of mounts where two commands run in one container.
        self.second = run("buildah", "from", "--pull-never", self.image).stdout.strip()
        self.volumes = {}
        declared = compose.get("volumes") or {}
        for entry in settings.get("volumes", []):
            source, target = entry.split(":")[:2]
            assert source in declared, f"{name}: the volume {source} is not declared"
            self.volumes[self.volume(source, target)] = target
        # An engine gives a declared volume of the image that the file does not name a place of its own.
        for target in self.config.get("Volumes") or {}:
            if target not in self.volumes.values():
                self.volumes[self.volume("anonymous" + target.replace("/", "-"), target)] = target
        for secret in settings.get("secrets", []):
            assert secret in compose["secrets"], f"{name}: the secret {secret} is not declared"
            self.volumes[os.path.join(work, secret)] = f"/run/secrets/{secret}:ro"
        self.environment = dict(line.split("=", 1) for line in self.config.get("Env") or [])
        self.environment |= {key: str(value) for key, value in (settings.get("environment") or {}).items()}
        self.connect_network()
        for entry in settings.get("ports", []):
            host, port, inner = entry.split(":")
            forward((host, int(port)), (self.address, int(inner)))
        self.process = None

    def volume(self, name, target):
        """An empty named volume takes the owner and the mode of the directory in the image."""
        path = os.path.join(self.work, "volumes", f"{self.name}-{name}")
        os.makedirs(path)
        root = run("buildah", "mount", self.container).stdout.strip()
        inner = os.stat(root + target)
        os.chown(path, inner.st_uid, inner.st_gid)
        os.chmod(path, inner.st_mode & 0o7777)
        run("buildah", "umount", self.container)
        return path

    def connect_network(self):
        veth = f"veth-{self.name}"
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "link", "set", veth, "master", "services", "up")
        run("ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "-n", self.name, "link", "set", "eth0", "up")
        run("ip", "-n", self.name, "link", "set", "lo", "up")

    def inside(self, words, container=None):
        """A command in the container: the user of the image, no rights, and where the file says so a read-only root."""
        user = self.config["User"]
        assert user and user.split(":")[0] not in ("0", "root"), f"{self.image} runs as root"
        ids = "--init-groups" if ":" not in user else "--clear-groups"
        name, _, group = user.partition(":")
        drop = ["setpriv", f"--reuid={name}", f"--regid={group or name}", ids, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        remount = "mount -o remount,bind,ro / && " if self.settings.get("read_only") else ""
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

    def start(self):
        words = (self.config.get("Entrypoint") or []) + (self.settings.get("command") or self.config["Cmd"])
        self.log = open(os.path.join(self.work, f"{self.name}.log"), "ab")
        self.process = subprocess.Popen(self.inside(words), stdout=self.log, stderr=self.log, start_new_session=True)

    def pid(self):
        """Of the program itself, not of what started it."""
        program = ((self.config.get("Entrypoint") or []) + self.config["Cmd"])[0]
        for pid in run("ip", "netns", "pids", self.name).stdout.split():
            try:
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith((program, "redis-check")):
                    return int(pid)
            except OSError:
                pass
        return None

    def end(self, number):
        os.kill(self.pid(), number)
        return self.process.wait(timeout=30)

    def is_healthy(self):
        test = self.config["Healthcheck"]["Test"]
        assert test[0] == "CMD", test
        return run(*self.inside(test[1:], self.second), check=False).returncode == 0

    def check_confinement(self):
        pid = self.pid()
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status") if ":\t" in line)
        assert int(status["Uid"].split()[0]) != 0, "runs as root"
        assert int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, "has capabilities"
        assert status["NoNewPrivs"].strip() == "1"
        root = next(line.split() for line in open(f"/proc/{pid}/mountinfo") if line.split()[4] == "/")
        if self.settings.get("read_only"):
            assert "ro" in root[5].split(","), f"the root of {self.name} is not read-only: {root}"
            tried = run(*self.inside(["sh", "-c", ": >/tmp/x"], self.second), check=False)
            assert tried.returncode != 0 and "Read-only" in tried.stderr, tried


def field(pairs, name):
    return dict(zip(pairs[::2], pairs[1::2]))[name]


class Scene:
    def __init__(self, compose):
        self.work = tempfile.mkdtemp(prefix="redfence-compose-")
        # Names of namespaces are files: in a place of our own.
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "services", "type", "bridge")
        run("ip", "addr", "add", f"{SUBNET}.1/24", "dev", "services")
        run("ip", "link", "set", "services", "up")
        for name in compose.get("secrets") or {}:
            path = os.path.join(self.work, name)
            with open(path, "w") as file:
                file.write(os.urandom(32).hex() + "\n")
            # As docker/README.md has it: the user of the image may read it, nobody else.
            os.chmod(path, 0o400)
            os.chown(path, 10001, 10001)
        self.services = {}
        built = {name: settings for name, settings in compose["services"].items() if "build" in settings}
        for name in compose["services"].keys() - built.keys():
            say(f"left out: {name}, whose image comes from a registry")
        for number, (name, settings) in enumerate(built.items()):
            self.services[name] = Service(name, settings, number, compose, self.work)
        with open(os.path.join(self.work, "hosts"), "w") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            hosts.writelines(f"{service.address} {name}\n" for name, service in self.services.items())
        self.nodes = [service for service in self.services.values() if "REDFENCE_ID" in service.environment]

    def client(self, node):
        """Through the published port, as from the host."""
        host, port, _ = node.settings["ports"][0].split(":")
        return Client(host, int(port), node.environment["REDFENCE_PASSWORD"])

    def leader(self, asked):
        number = field(self.client(asked).ask("LOCK.CLUSTER", "INFO"), "leader")
        return next(node for node in self.nodes if node.environment["REDFENCE_ID"] == str(number))

    def await_serving(self, nodes):
        for node in nodes:
            await_that(f"{node.name} serves", lambda: self.client(node).ask("SET", "ready?", "1") == "OK")

    def play(self):
        for service in self.services.values():
            service.start()
        self.await_serving(self.nodes)
        for service in self.services.values():
            await_that(f"{service.name} is healthy", service.is_healthy)
            service.check_confinement()
        say(f"{', '.join(self.services)}: started, healthy, not root, no capabilities, read-only root")
        fence = self.locks()
        self.killed_leader(fence)
        self.restart_of_all(fence)

    def locks(self):
        first, second = self.nodes[:2]
        grant = self.client(first).ask("LOCK.ACQUIRE", "wallet:7", 600000, "OWNER", "alice")
        assert self.client(second).ask("LOCK.ACQUIRE", "wallet:7", 1000, "OWNER", "bob") is None, "two holders"
        fast = await_that("tier 1 serves", lambda: self.client(second).ask("LOCK.ACQUIRE", "cache:1", 600000, "OWNER", "carol"))
        assert field(self.client(first).ask("LOCK.INFO", "cache:1"), "tier").upper() == "EFFICIENCY"
        say(f"a lock on each tier, refused through another node (fences {grant[0]}, {fast[0]})")
        return grant[0]

    def killed_leader(self, fence):
        killed = self.leader(self.nodes[0])
        others = [node for node in self.nodes if node is not killed]
        killed.end(signal.SIGKILL)
        self.await_serving(others)
        for node in others:
            assert self.client(node).ask("LOCK.ACQUIRE", "wallet:7", 1000, "OWNER", "bob") is None, "two holders"
        say(f"{killed.name}, the leader, killed: the others serve, the lock is still alice's")
        killed.start()
        self.await_serving([killed])
        info = self.client(killed).ask("LOCK.INFO", "wallet:7")
        assert field(info, "fence") == fence, info
        await_that(f"{killed.name} is healthy", killed.is_healthy)
        say(f"{killed.name} started again with its volume: it knows the lock")

    def restart_of_all(self, fence):
        for service in reversed(self.services.values()):
            code = service.end(signal.SIGTERM)
            assert code == 0, f"{service.name} ended with {code} on SIGTERM"
        for service in self.services.values():
            service.start()
        self.await_serving(self.nodes)
        for node in self.nodes:
            info = await_that("the lock is known", lambda: self.client(node).ask("LOCK.INFO", "wallet:7"))
            assert field(info, "fence") == fence, info
        await_that("tier 1 knows its lock", lambda: self.client(self.nodes[0]).ask("LOCK.INFO", "cache:1"))
        assert self.client(self.nodes[1]).ask("LOCK.ACQUIRE", "cache:1", 1000, "OWNER", "dave") is None, "two holders"
        say("all stopped by SIGTERM (exit code 0) and started again with their volumes: both locks are still held")

    def close(self, show_logs):
        for service in self.services.values():
            if service.process and service.process.poll() is None and service.pid():
                service.end(signal.SIGKILL)
            if show_logs:
                print(f"--- {service.name}", open(os.path.join(self.work, f"{service.name}.log"), errors="replace").read()[-3000:], sep="\n")
            run("buildah", "rm", service.container, service.second, check=False)
        shutil.rmtree(self.work, ignore_errors=True)


def main():
    with open(sys.argv[1]) as file:
        compose = yaml.safe_load(file)
    scene = Scene(compose)
    is_done = False
    try:
        scene.play()
        is_done = True
    finally:
        scene.close(show_logs=not is_done)


main()
