"""Follows docs/install.md to the letter on three machines: every block of commands, on the machines the page names.

Called by scripts/deb-test, as root, in network, mount and process namespaces of its own. A machine is a minimal Debian that boots systemd
in systemd-nspawn; a bridge connects them. Usage: install_page.py PAGE ROOT PACKAGES, with an unpacked root and the directory of the packages.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

SUBNET = "10.231.78"
NAMES = ["node1", "node2", "node3"]
WITHIN_S = 120
# How the programs of the page reach a node.
ASK = "--tls-ca /etc/redfence/ca.crt --password-file /etc/redfence/password"


def say(text):
    print(f"  {text}", flush=True)


def run(*words, check=True, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if check and done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done


def await_that(what, done):
    end = time.monotonic() + WITHIN_S
    while not done():
        if time.monotonic() > end:
            sys.exit(f"not within {WITHIN_S} s: {what}")
        time.sleep(0.2)


def blocks(page):
    """Each block of shell commands with the machines of the last line `On **…**` before it."""
    place, block = None, None
    for line in page.splitlines():
        if match := re.match(r"On \*\*(.+?)\*\*", line):
            place = match.group(1)
        elif line == "```sh":
            block = []
        elif line == "```" and block is not None:
            yield place, "\n".join(block)
            block = None
        elif block is not None:
            block.append(line)


def plain_blocks(page, title):
    """The blocks of a section that are not run by `follow`: each needs something between its lines, or another machine."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    fenced = section.split("```\n")[1::2]
    return [textwrap.dedent(block).strip().splitlines() for block in fenced]


class Machine:
    def __init__(self, name, number, lower, work):
        self.name, self.work = name, work
        self.root = os.path.join(work, name)
        upper, inner = os.path.join(work, f"{name}.upper"), os.path.join(work, f"{name}.work")
        for path in (self.root, upper, inner):
            os.makedirs(path)
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={inner}", self.root)
        with open(os.path.join(self.root, "etc/hosts"), "w") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            hosts.writelines(f"{SUBNET}.{at + 1} {other}\n" for at, other in enumerate(NAMES))
        with open(os.path.join(self.root, "etc/hostname"), "w") as hostname:
            hostname.write(name + "\n")
        # systemd wants a control group that it shares with nobody.
        tree = "/sys/fs/cgroup/systemd" if os.path.isdir("/sys/fs/cgroup/systemd") else "/sys/fs/cgroup"
        self.group = f"{tree}/redfence-{name}-{os.getpid()}"
        os.makedirs(self.group, exist_ok=True)
        self.log = open(os.path.join(work, f"{name}.log"), "wb")
        self.process = subprocess.Popen(
            [
                *("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', self.group, "systemd-nspawn", "--quiet", "--boot"),
                *("--directory", self.root, "--machine", name, "--register=no", "--keep-unit", "--link-journal=no"),
                *("--network-bridge=machines", "--console=pipe", "--resolv-conf=off", "--timezone=off"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        await_that(f"{name} has an init", self.find_init)
        self.enter = ["nsenter", "--target", str(self.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"]
        net = ["nsenter", "--target", str(self.init), "--net", "ip"]
        run(*net, "addr", "add", f"{SUBNET}.{number + 1}/24", "dev", "host0")
        run(*net, "link", "set", "host0", "up")
        await_that(f"{name} has booted", lambda: self.sh("systemctl is-system-running", check=False).stdout.strip() in ("running", "degraded"))

    def find_init(self):
        if self.process.poll() is not None:
            sys.exit(f"{self.name} does not boot: {open(self.log.name).read()}")
        for pid in run("pgrep", "--parent", str(self.process.pid), check=False).stdout.split():
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "systemd":
                self.init = int(pid)
                return True
        return False

    def sh(self, script, check=True):
        done = run(
            *self.enter, "env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive", "bash", "-euo", "pipefail", "-c", script, check=False,
        )
        if check and done.returncode != 0:
            journal = self.sh("journalctl --no-pager -n 30 -u redfence || true", check=False).stdout
            sys.exit(f"on {self.name}: {script}\n{done.stdout}{done.stderr}\n{journal}")
        return done

    def stop(self):
        # SIGTERM asks for an orderly end, a second one for an end.
        for _ in range(2):
            if self.process.poll() is None:
                self.process.terminate()
                try:
                    self.process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    continue
        if self.process.poll() is None:
            self.process.kill()
        run("umount", "-l", self.root, check=False)
        for folder, _, _ in os.walk(self.group, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass


class Cluster:
    def __init__(self, lower, packages):
        self.packages, self.lower = packages, lower
        self.work = tempfile.mkdtemp(prefix="redfence-install-")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "machines", "type", "bridge")
        run("ip", "link", "set", "machines", "up")
        self.machines = []
        for number, name in enumerate(NAMES):
            self.machines.append(Machine(name, number, lower, self.work))
        say("three machines have booted systemd")

    def copy(self, source, line):
        """`scp FILE… root@HOST:`, from the directory the block is in; the machines have no sshd."""
        *files, target = line.split()[1:]
        host = next(machine for machine in self.machines if target == f"root@{machine.name}:")
        for file in files:
            shutil.copy(os.path.join(source.root, "root/redfence", file), os.path.join(host.root, "root", file))

    def follow(self, page):
        """Returns what the last command block on node1 has printed, and how many blocks were run."""
        count = 0
        for place, block in blocks(page):
            if place == "your build machine":
                # `make deb` has run; its package is copied.
                for machine in self.machines:
                    for package in os.listdir(self.packages):
                        shutil.copy(os.path.join(self.packages, package), os.path.join(machine.root, "root", package))
                continue
            for number, machine in enumerate(self.machines):
                if place not in ("every machine", machine.name):
                    continue
                lines = block.splitlines()
                for line in lines:
                    if line.startswith("scp "):
                        self.copy(machine, line)
                script = "\n".join(line for line in lines if not line.startswith("scp "))
                # What the page says in a comment.
                script = re.sub(r"^id=1 .*", f"id={number + 1}", script, flags=re.M)
                # These are there already: the machines reach no mirror.
                script = re.sub(r"apt-get install -y (redis-tools|openssl)$", r"dpkg --status \1 >/dev/null", script, flags=re.M)
                done = machine.sh(script)
                count += 1
                if "LOCK.ACQUIRE" in block:
                    self.check_locks(done.stdout)
                elif "redfence cluster" in block:
                    self.check_members(done.stdout)
            say(f"done on {place}: {block.splitlines()[0]}")
        return count

    def check_members(self, text):
        assert ": quorum, " in text, text
        for name in NAMES:
            assert f"{name}:7380" in text, text

    def check_locks(self, text):
        acquired = re.search(r"^(\d{15,})\n600000\n\n", text, flags=re.M)
        assert acquired, f"a fence and a ttl, then nil: {text}"
        assert text.count(acquired.group(1)) >= 2, f"LOCK.INFO shows the fence: {text}"
        say(f"a lock with fence {acquired.group(1)}, refused through node2, shown by node3")

    def check_units(self):
        """What the page promises about the service."""
        for machine in self.machines:
            show = machine.sh("systemctl show redfence --property=Type,ActiveState,StatusText,NRestarts,MainPID").stdout
            assert "Type=notify" in show and "ActiveState=active" in show, show
            assert "StatusText=node " in show, f"READY=1 came with a status: {show}"
            pid = re.search(r"MainPID=(\d+)", show).group(1)
            status = machine.sh(f"cat /proc/{pid}/status").stdout
            assert re.search(r"CapBnd:\s+0{16}", status) and re.search(r"NoNewPrivs:\s+1", status), status
            assert re.search(r"Seccomp:\s+2", status), status
            modes = machine.sh("stat -c '%a %U' /var/lib/redfence /var/lib/redfence/data /etc/redfence/server.key").stdout
            assert modes.split("\n")[:3] == ["700 redfence", "700 redfence", "640 root"], modes
        assert "NRestarts=1" in self.machines[1].sh("systemctl show redfence --property=NRestarts").stdout
        level = self.machines[0].sh("systemd-analyze security --no-pager redfence.service | tail -1").stdout.strip()
        say(f"units are active, confined; {level}")

    def check_restore(self, page):
        """All three machines, from a backup, as the page says."""
        (stop, move, copy, number, restore, start) = plain_blocks(page, "Restore")[0]
        first = self.machines[0]
        first.sh(f"redfence backup --from node1:6380 --out ~/locks.backup {ASK}")
        for machine in self.machines:
            if machine is not first:
                shutil.copy(os.path.join(first.root, "root/locks.backup"), os.path.join(machine.root, "root/locks.backup"))
            machine.sh(stop)
        for id, machine in enumerate(self.machines, 1):
            machine.sh("\n".join([move, copy, number.replace("id=1 ", f"id={id} "), restore]))
        for machine in self.machines:
            # In a sandbox the control group of the stopped service may still be there; systemd tries again.
            machine.sh(start, check=False)
        await_that("the restored cluster serves", lambda: self.holds_lock(self.machines[1]))
        say("restored from a backup: the lock is held")

    def check_replace(self, page):
        """node2 is gone, node4 takes its place, as the page says."""
        options, start, replace = plain_blocks(page, "Replace a node")
        first = self.machines[0]
        certificate = re.search(r"^openssl req -x509 -CA (.*\\\n)+.*", page, flags=re.M).group(0)
        first.sh("cd ~/redfence\n" + certificate.replace("DNS:node1,DNS:node2,DNS:node3", "DNS:node4"))
        lost = self.machines[1]
        self.machines[1] = new = Machine("node4", 3, self.lower, self.work)
        lost.stop()
        for machine in self.machines:
            machine.sh(f"echo '{SUBNET}.4 node4' >>/etc/hosts")
        for package in os.listdir(self.packages):
            shutil.copy(os.path.join(self.packages, package), os.path.join(new.root, "root", package))
        files = "ca.crt server.crt server.key password peer-secret"
        for file in files.split():
            shutil.copy(os.path.join(first.root, "root/redfence", file), os.path.join(new.root, "root", file))
        new.sh(f"cd ~ && apt-get install -y ./redfence_*.deb && install -o root -g redfence -m 640 {files} /etc/redfence/")
        with open(os.path.join(new.root, "etc/redfence/redfence.toml"), "w") as file:
            file.write("\n".join(options) + "\n")
        new.sh("\n".join(start))
        first.sh("\n".join(replace))
        members = first.sh(f"redfence cluster --addr node1:6380 {ASK}").stdout
        assert "node4:7380" in members and "node2:7380" not in members, members
        await_that("node4 serves", lambda: self.holds_lock(new))
        say("node4 has taken the place of node2: the lock is held")

    def holds_lock(self, machine):
        seen = machine.sh(f"redfence locks --addr {machine.name}:6380 {ASK} 'wallet:7'", check=False).stdout
        return "held" in seen

    def check_module(self):
        """The module's package, in a Redis."""
        node = self.machines[0]
        node.sh("cd /root && apt-get install -y ./redfence-redis-module_*.deb ./redfence-dbgsym_*.deb")
        module = "/usr/lib/redis/modules/libredfence_module.so"
        node.sh(f"redis-server --port 7000 --save '' --daemonize yes --loadmodule {module}")
        await_that("the Redis serves", lambda: "PONG" in node.sh("redis-cli -p 7000 PING", check=False).stdout)
        assert re.match(r"\d{15,}\n600000\n", node.sh("redis-cli -p 7000 LOCK.ACQUIRE cache:1 600000").stdout)
        node.sh("redis-cli -p 7000 SHUTDOWN NOSAVE")
        for program in ("usr/bin/redfence", module[1:]):
            node.sh(f"test -s /usr/lib/debug/{program}.debug")
        say("the module's package serves a lock in a Redis")

    def check_life_of_package(self):
        """Reload, reboot, upgrade, remove and purge."""
        node = self.machines[2]
        ask = "REDISCLI_AUTH=$(cat /etc/redfence/password) redis-cli --tls --cacert /etc/redfence/ca.crt -h node3 -p 6380 "
        node.sh("systemctl reload redfence")
        await_that("the certificates are read again", lambda: "read again" in node.sh("journalctl --no-pager -u redfence").stdout)
        before = node.sh("systemctl show redfence --property=MainPID").stdout
        node.sh("cd /root && dpkg -i redfence_*.deb")
        assert before == node.sh("systemctl show redfence --property=MainPID").stdout, "an upgrade leaves the node alone"
        assert 'id = 3' in node.sh("cat /etc/redfence/redfence.toml").stdout, "an upgrade leaves the configuration alone"
        node.sh("systemctl restart redfence")
        await_that("node3 serves again", lambda: "wallet" in node.sh(ask + "KEYS 'wallet*'", check=False).stdout)
        stopped = node.sh("systemctl stop redfence && systemctl show redfence --property=Result,ExecMainStatus").stdout
        assert "Result=success" in stopped and "ExecMainStatus=0" in stopped, stopped
        node.sh("systemctl start redfence && apt-get remove -y redfence")
        assert "IDENTITY" in node.sh("ls /var/lib/redfence/data").stdout, "remove leaves the data"
        node.sh("apt-get purge -y redfence && ! ls /var/lib/redfence && ls /etc/redfence/server.key && ! ls /etc/redfence/redfence.toml")
        say("reload, upgrade, restart, stop, remove and purge do what the page says")

    def close(self):
        for machine in self.machines:
            machine.stop()
        shutil.rmtree(self.work, ignore_errors=True)


def main():
    page, lower, packages = sys.argv[1:]
    cluster = Cluster(lower, packages)
    try:
        text = open(page).read()
        count = cluster.follow(text)
        assert count >= 14, f"only {count} blocks were found: has the page changed its form?"
        cluster.check_units()
        cluster.check_restore(text)
        cluster.check_replace(text)
        cluster.check_module()
        cluster.check_life_of_package()
    finally:
        cluster.close()


main()
