"""Starts the pods of the rendered chart from the image, as kubelet would, and scales them up.

Called by scripts/images, as root, in network, mount and process namespaces of its own. Of each pod: init container, command, environment, user,
read-only root, volumes with the owner that fsGroup gives them, secrets with their mode, probes. Usage: chart_pods.py SMALL.yaml LARGE.yaml REJOIN.yaml,
the chart with its founders alone, with one more, and with pod 1 told to join again.
"""

import base64
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import yaml

from containers import Client, Container, await_that, field, make_network, run, say

SERVICE = "rf-redfence.locks.svc"


def only(documents, kind):
    found = [document for document in documents if document["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of {kind}"
    return found[0]


def make_tls(folder):
    """ca.crt, tls.crt and tls.key, as cert-manager would put them into a secret."""
    os.makedirs(folder)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    at = lambda name: os.path.join(folder, name)
    run("openssl", "req", "-x509", *key, "-subj", "/CN=CA", "-keyout", at("ca.key"), "-out", at("ca.crt"))
    run(
        *("openssl", "req", "-x509", "-CA", at("ca.crt"), "-CAkey", at("ca.key"), *key, "-subj", "/CN=redfence"),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"subjectAltName=DNS:{SERVICE}"),
        *("-keyout", at("tls.key"), "-out", at("tls.crt")),
    )
    os.remove(at("ca.key"))


class Pod(Container):
    def __init__(self, stateful_set, ordinal, secrets, work):
        super().__init__(f"{stateful_set['metadata']['name']}-{ordinal}", "localhost/redfence", ordinal, work)
        self.use(stateful_set)
        security = self.spec["securityContext"]
        self.user = f"{security['runAsUser']}:{security['runAsGroup']}"
        self.is_read_only = self.node["securityContext"]["readOnlyRootFilesystem"]
        self.image_environment = dict(self.environment)
        self.claim = os.path.join(work, f"claim-{ordinal}")
        self.make_claim()
        sources = {"data": self.claim}
        for volume in self.spec["volumes"]:
            sources[volume["name"]] = secrets[volume["secret"]["secretName"]]
            for name in os.listdir(sources[volume["name"]]):
                path = os.path.join(sources[volume["name"]], name)
                os.chown(path, 0, security["fsGroup"])
                os.chmod(path, volume["secret"]["defaultMode"])
        for mount in self.node["volumeMounts"]:
            self.volumes[sources[mount["name"]]] = mount["mountPath"] + (":ro" if mount.get("readOnly") else "")

    def use(self, stateful_set):
        self.spec = stateful_set["spec"]["template"]["spec"]
        (self.join,), (self.node,) = self.spec["initContainers"], self.spec["containers"]

    def make_claim(self):
        """An empty volume, as fsGroup leaves it."""
        shutil.rmtree(self.claim, ignore_errors=True)
        os.makedirs(self.claim)
        os.chown(self.claim, 0, self.spec["securityContext"]["fsGroup"])
        os.chmod(self.claim, 0o2775)

    def set_environment(self, container):
        self.environment = dict(self.image_environment)
        for entry in container["env"]:
            if "valueFrom" in entry:
                assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name", entry
            self.environment[entry["name"]] = entry.get("value", self.name)

    def up(self):
        self.set_environment(self.join)
        done = subprocess.run(self.inside(self.join["command"] + self.join["args"]), capture_output=True, text=True)
        assert done.returncode == 0, f"{self.name}: {done.stdout}{done.stderr}"
        self.set_environment(self.node)
        self.start(self.node["command"] + self.node["args"])
        return done.stdout.strip()

    def passes(self, probe):
        get = self.node[probe]["httpGet"]
        port = next(port["containerPort"] for port in self.node["ports"] if port["name"] == get["port"])
        context = ssl.create_default_context()
        # As kubelet does.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = f"{get['scheme'].lower()}://{self.address}:{port}{get['path']}"
        try:
            return urllib.request.urlopen(url, timeout=5, context=context).status == 200
        except urllib.error.HTTPError:
            return False


class Scene:
    def __init__(self, small, large, rejoin):
        self.work = tempfile.mkdtemp(prefix="redfence-pods-")
        make_network()
        self.small, self.large, self.rejoin = (only(documents, "StatefulSet") for documents in (small, large, rejoin))
        auth = only(small, "Secret")
        folders = {auth["metadata"]["name"]: os.path.join(self.work, "auth"), "redfence-tls": os.path.join(self.work, "tls")}
        os.makedirs(folders[auth["metadata"]["name"]])
        for name, value in auth["data"].items():
            with open(os.path.join(folders[auth["metadata"]["name"]], name), "wb") as file:
                file.write(base64.b64decode(value))
        make_tls(folders["redfence-tls"])
        self.secrets = folders
        self.password = base64.b64decode(auth["data"]["password"]).decode()
        self.pods = [Pod(self.small, ordinal, folders, self.work) for ordinal in range(self.small["spec"]["replicas"])]
        self.write_hosts(self.pods)

    def write_hosts(self, pods):
        """Names of the headless service, and the service for clients, which knows the first pods."""
        peers = f"{self.small['spec']['serviceName']}.locks.svc"
        with open(os.path.join(self.work, "hosts"), "w") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            hosts.writelines(f"{pod.address} {pod.name}.{peers}\n" for pod in pods)
            hosts.writelines(f"{pod.address} {SERVICE}\n" for pod in pods[:3])

    def client(self, pod):
        return Client(pod.address, 6380, self.password, os.path.join(self.work, "tls/ca.crt"), SERVICE)

    def voters(self):
        return field(self.client(self.pods[0]).ask("LOCK.CLUSTER", "INFO"), "voters")

    def await_ready(self, pods):
        for pod in pods:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                await_that(f"{probe} of {pod.name}", lambda: pod.passes(probe))
            pod.check_confinement()

    def play(self):
        for pod in self.pods:
            assert pod.up() == "", "founders do not join"
        self.await_ready(self.pods)
        grant = self.client(self.pods[0]).ask("LOCK.ACQUIRE", "wallet:7", 600000, "OWNER", "alice")
        assert self.client(self.pods[1]).ask("LOCK.ACQUIRE", "wallet:7", 1000, "OWNER", "bob") is None, "two holders"
        say(f"{len(self.pods)} pods are ready by their probes; a lock by TLS and password, fence {grant[0]}")

        template = lambda stateful_set: stateful_set["spec"]["template"]
        assert template(self.small) == template(self.large), "scaling restarts no pod"
        new = Pod(self.large, len(self.pods), self.secrets, self.work)
        self.pods.append(new)
        self.write_hosts(self.pods)
        assert "is a member" in new.up()
        self.await_ready([new])
        await_that("the new node is a voter", lambda: self.voters() == 4)
        info = self.client(new).ask("LOCK.INFO", "wallet:7")
        assert field(info, "fence") == grant[0], info
        say(f"scaled up: {new.name} joined by itself and is a voter")

        members = self.cluster()
        assert ": quorum, " in members and new.name in members, members

        assert new.end(signal.SIGTERM) == 0
        await_that("the others serve", lambda: self.client(self.pods[0]).ask("SET", "key", "1") == "OK")
        assert self.voters() == 4, "a pod that stops stays a member"
        assert "nothing to do" in new.up()
        self.await_ready([new])
        await_that("it has caught up", lambda: self.client(new).ask("GET", "key") == "1")
        say(f"{new.name} stopped by SIGTERM stayed a member, and came back with its volume")

        self.lose_a_volume(self.pods[1])

    def lose_a_volume(self, lost):
        """As docs/kubernetes.md says: the member is removed, the pod joins as a new node."""
        lost.end(signal.SIGKILL)
        lost.make_claim()
        self.cluster("remove", "2")
        assert self.voters() == 3
        lost.use(self.rejoin)
        assert "is a member" in lost.up()
        self.await_ready([lost])
        await_that("it is a voter again", lambda: self.voters() == 4)
        await_that("it has caught up", lambda: self.client(lost).ask("GET", "key") == "1")
        say(f"{lost.name}, a founder, lost its volume and joined again")

    def cluster(self, *words):
        """A program run in a pod, as docs/kubernetes.md has it."""
        access = ["--tls-ca", "/etc/redfence/tls/ca.crt", "--password-file", "/etc/redfence/auth/password"]
        return run(*self.pods[0].inside(["redfence", "cluster", *words, *access], self.pods[0].second)).stdout

    def close(self, show_logs):
        for pod in self.pods:
            pod.remove(show_logs)
        shutil.rmtree(self.work, ignore_errors=True)


def main():
    scene = Scene(*([document for document in yaml.safe_load_all(open(path)) if document] for path in sys.argv[1:]))
    is_done = False
    try:
        scene.play()
        is_done = True
    finally:
        scene.close(show_logs=not is_done)


main()
