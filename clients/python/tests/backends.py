"""What the suite runs against: clusters, single nodes, a Redis with the module, a Redis with the Lua library."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

import redis

ROOT = Path(__file__).resolve().parents[3]


class Missing(Exception):
    """The machine does not have what this backend needs."""


def _built(*names: str) -> Optional[Path]:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [target / profile / name for profile in ("release", "debug", "quick") for name in names]
    found = [path for path in found if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


def redfence_bin() -> Path:
    named = os.environ.get("REDFENCE_BIN")
    path = Path(named) if named else _built("redfence")
    if path is None or not path.exists():
        raise Missing("the program redfence: build it, or name it in REDFENCE_BIN")
    return path


def redis_bin() -> str:
    path = shutil.which("redis-server")
    if path is None:
        raise Missing("redis-server")
    return path


def free_ports(count: int) -> List[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def poll(condition: Any, within: float = 30.0, what: str = "condition") -> Any:
    give_up_at = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > give_up_at:
            raise AssertionError(f"{what}: not within {within} s")
        time.sleep(0.02)


class Server:
    """One process and its port."""

    def __init__(self, port: int, command: List[str], folder: Path, log: str) -> None:
        self.port = port
        self.command = command
        self.folder = folder
        self.log = folder / log
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)

    def connection(self, **options: Any) -> "redis.Redis":
        return redis.Redis(port=self.port, socket_timeout=20, **options)

    def serves(self) -> bool:
        try:
            with self.connection() as connection:
                return bool(connection.ping())
        except redis.RedisError:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"{self.command} ended:\n{self.log.read_text()[-2000:]}") from None
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def up(self) -> bool:
        return self.process is not None


class Backend:
    name = ""
    features: Set[str] = set()

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"redfence-sdk-{self.name}-"))
        self.servers: List[Server] = []

    def addresses(self) -> List[Tuple[str, int]]:
        return [("127.0.0.1", server.port) for server in self.servers]

    def urls(self) -> List[str]:
        return [f"redis://127.0.0.1:{server.port}" for server in self.servers]

    def execute(self, *words: Any) -> Any:
        """A command of the driver's own, asked where somebody answers."""
        give_up_at = time.monotonic() + 30
        while True:
            for server in self.servers:
                if not server.up():
                    continue
                try:
                    with server.connection(protocol=3) as connection:
                        return connection.execute_command(*self.translate(words))
                except redis.RedisError as error:
                    last = error
                    if not isinstance(error, (redis.ConnectionError, redis.TimeoutError)) and "UNAVAILABLE" not in str(error):
                        raise
            if time.monotonic() > give_up_at:
                raise AssertionError(f"nobody answers {words}: {last}")
            time.sleep(0.1)

    def translate(self, words: Tuple[Any, ...]) -> Tuple[Any, ...]:
        return words

    def info(self, name: str) -> Dict[str, Any]:
        reply = self.execute("LOCK.INFO", name)
        if isinstance(reply, list):
            reply = dict(zip(reply[::2], reply[1::2]))
        return {key.decode(): value for key, value in reply.items()}

    def restore(self) -> None:
        """Starts again what a scenario killed."""
        for server in self.servers:
            if not server.up():
                server.start()
        for server in self.servers:
            poll(server.serves, what=f"{server.log} serves")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Tier2(Backend):
    def detect(self) -> None:
        self.features = {"sessions", "real_tier2", "relay"}
        with self.servers[0].connection(protocol=3) as connection:
            def version() -> bool:
                reply = connection.execute_command("LOCK.CLUSTER", "VERSION")
                return bool(reply[b"cluster_version"] == reply[b"node_version"])

            poll(version, what="the cluster has its newest version")
            if connection.execute_command("LOCK.CLUSTER", "VERSION")[b"cluster_version"] >= 2:
                self.features |= {"kinds", "push"}


class Single(Tier2):
    name = "single"

    def __init__(self) -> None:
        super().__init__()
        binary = redfence_bin()
        (port,) = free_ports(1)
        command = [str(binary), "serve", "--listen", f"127.0.0.1:{port}", "--data", "data"]
        self.servers = [Server(port, command, self.folder, "node.log")]
        poll(self.servers[0].serves, what="node serves")
        poll(lambda: self.execute("LOCK.CLUSTER", "INFO")[b"quorum"] == 1, what="quorum")
        self.detect()


class Cluster(Tier2):
    name = "cluster"

    def __init__(self) -> None:
        super().__init__()
        binary = redfence_bin()
        ports = free_ports(6)
        members = ",".join(f"{i + 1}=127.0.0.1:{ports[3 + i]}" for i in range(3))
        for i in range(3):
            command = [
                str(binary), "serve", "--id", str(i + 1), "--listen", f"127.0.0.1:{ports[i]}",
                "--peer-listen", f"127.0.0.1:{ports[3 + i]}", "--cluster", members, "--data", f"node{i + 1}",
            ]  # fmt: skip
            self.servers.append(Server(ports[i], command, self.folder, f"node{i + 1}.log"))
        for server in self.servers:
            poll(server.serves, what="node serves")
        poll(self.leader, what="a leader")
        self.detect()
        self.features |= {"cluster"}

    def leader(self) -> Optional[Server]:
        for server in self.servers:
            if server.up():
                try:
                    with server.connection(protocol=3) as connection:
                        if connection.execute_command("LOCK.CLUSTER", "INFO")[b"role"] == b"leader":
                            return server
                except redis.RedisError:
                    continue
        return None

    def restore(self) -> None:
        super().restore()
        poll(self.leader, what="a leader")


class Tier1(Backend):
    features = {"tier1", "relay"}

    def start_redis(self, *options: str) -> None:
        (port,) = free_ports(1)
        command = [redis_bin(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), *options]
        self.servers = [Server(port, command, self.folder, "redis.log")]
        poll(self.servers[0].serves, what="redis serves")


class Module(Tier1):
    name = "module"

    def __init__(self) -> None:
        named = os.environ.get("REDFENCE_MODULE")
        module = Path(named) if named else _built("libredfence_module.so", "libredfence_module.dylib")
        if module is None or not module.exists():
            raise Missing("the Redis module: build redfence-module, or name the file in REDFENCE_MODULE")
        super().__init__()
        self.start_redis("--loadmodule", str(module))


class Lua(Tier1):
    name = "lua"

    def __init__(self) -> None:
        redis_bin()
        super().__init__()
        self.start_redis()
        library = (ROOT / "lua" / "redfence.lua").read_text()
        with self.servers[0].connection() as connection:
            connection.execute_command("FUNCTION", "LOAD", "REPLACE", library)

    def translate(self, words: Tuple[Any, ...]) -> Tuple[Any, ...]:
        function = words[0].lower().replace(".", "_", 1)
        return ("FCALL", function, 1, *words[1:])


BACKENDS = {backend.name: backend for backend in (Single, Cluster, Module, Lua)}
