"""Starts every service of a compose file from its image, as a container engine would, and uses them as a user would.

Called by scripts/images, as root, in network, mount and process namespaces of its own. Of the image: user, environment, entry point and health check;
of the file: environment, volumes, secrets, published ports and read_only.
"""

import os
import shutil
import signal
import sys
import tempfile

import yaml

from containers import Client, Container, await_that, field, forward, make_network, run, say


class Service(Container):
    def __init__(self, name, settings, number, compose, work):
        super().__init__(name, f"localhost/{settings['build']['target']}", number, work)
        self.settings = settings
        self.is_read_only = bool(settings.get("read_only"))
        self.environment |= {key: str(value) for key, value in (settings.get("environment") or {}).items()}
        declared = compose.get("volumes") or {}
        for entry in settings.get("volumes", []):
            source, target = entry.split(":")[:2]
            assert source in declared, f"{name}: the volume {source} is not declared"
            self.volumes[self.volume(source, target)] = target
        for secret in settings.get("secrets", []):
            assert secret in compose["secrets"], f"{name}: the secret {secret} is not declared"
            self.volumes[os.path.join(work, secret)] = f"/run/secrets/{secret}:ro"
        for entry in settings.get("ports", []):
            host, port, inner = entry.split(":")
            forward((host, int(port)), (self.address, int(inner)))

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

    def up(self):
        self.start((self.config.get("Entrypoint") or []) + (self.settings.get("command") or self.config["Cmd"]))

    def is_healthy(self):
        test = self.config["Healthcheck"]["Test"]
        assert test[0] == "CMD", test
        return run(*self.inside(test[1:], self.second), check=False).returncode == 0


class Scene:
    def __init__(self, compose):
        self.work = tempfile.mkdtemp(prefix="redfence-compose-")
        make_network()
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
            service.up()
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
        killed.up()
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
            service.up()
        self.await_serving(self.nodes)
        for node in self.nodes:
            info = await_that("the lock is known", lambda: self.client(node).ask("LOCK.INFO", "wallet:7"))
            assert field(info, "fence") == fence, info
        await_that("tier 1 knows its lock", lambda: self.client(self.nodes[0]).ask("LOCK.INFO", "cache:1"))
        assert self.client(self.nodes[1]).ask("LOCK.ACQUIRE", "cache:1", 1000, "OWNER", "dave") is None, "two holders"
        say("all stopped by SIGTERM (exit code 0) and started again with their volumes: both locks are still held")

    def close(self, show_logs):
        for service in self.services.values():
            service.remove(show_logs)
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
