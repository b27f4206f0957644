// Real nodes as separate processes, with users and an audit log.

import { spawn } from "node:child_process";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { Connection } from "./resp.mjs";
import { Hopeless, until } from "./until.mjs";

export const OPS = { user: "ops", password: "browser-ops" };
export const VIEWER = { user: "viewer", password: "browser-viewer" };

// Without a login one may look and take locks, but not act on those of others.
const OPEN = [
  "user default on nopass ~* &* +@all -@admin -@dangerous -lock.forcerelease -lock.session +lock.cluster|info +lock.cluster|version +lock.cluster|nodes +lock.cluster|get",
  `user ${OPS.user} on >${OPS.password} ~* &* +@all`,
  `user ${VIEWER.user} on >${VIEWER.password} ~* &* -@all +ping +lock.info +lock.explain +lock.queue +lock.scan +lock.session +lock.cluster|info +lock.cluster|version +lock.cluster|nodes +lock.cluster|get +subscribe +psubscribe`,
];
const CLOSED = ["user default off", `user ${OPS.user} on >${OPS.password} ~* &* +@all`];

async function freePorts(count) {
  const servers = await Promise.all([...Array(count)].map(() => new Promise((resolve, reject) => {
    const server = net.createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => resolve(server));
  })));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

export class Cluster {
  /** `closed`: nobody gets in without a login. */
  static async start({ binary, folder, size, closed }) {
    for (let attempt = 1; ; attempt += 1) {
      const cluster = new Cluster(binary, folder, size, closed);
      try {
        await cluster.launchAll();
        return cluster;
      } catch (error) {
        cluster.stop();
        // A port may be taken between the moment it was free and the moment it is used.
        if (attempt === 3) throw error;
      }
    }
  }

  constructor(binary, folder, size, closed) {
    this.binary = binary;
    this.folder = folder;
    this.size = size;
    this.users = closed ? CLOSED : OPEN;
    this.processes = new Map();
  }

  async launchAll() {
    fs.rmSync(this.folder, { recursive: true, force: true });
    fs.mkdirSync(this.folder, { recursive: true });
    fs.writeFileSync(path.join(this.folder, "users.acl"), `${this.users.join("\n")}\n`, { mode: 0o600 });
    const ports = await freePorts(this.size * 3);
    this.nodes = [...Array(this.size)].map((_, index) => ({ id: index + 1, port: ports[index * 3], peer: ports[index * 3 + 1], admin: ports[index * 3 + 2] }));
    for (const node of this.nodes) this.launch(node);
    await this.leader();
  }

  launch(node) {
    const log = fs.openSync(path.join(this.folder, `node${node.id}.log`), "a");
    // A user list of its own for each node, as on machines of their own.
    const acl = path.join(this.folder, `users${node.id}.acl`);
    if (!fs.existsSync(acl)) fs.copyFileSync(path.join(this.folder, "users.acl"), acl);
    fs.chmodSync(acl, 0o600);
    const words = ["serve", "--id", node.id, "--listen", `127.0.0.1:${node.port}`, "--admin", `127.0.0.1:${node.admin}`, "--data", path.join(this.folder, `data${node.id}`),
      "--acl-file", acl, "--audit-log", this.auditLog(node), "--route", "wallet:*=correctness"];
    if (this.size > 1) words.push("--peer-listen", `127.0.0.1:${node.peer}`, "--cluster", this.nodes.map((one) => `${one.id}=127.0.0.1:${one.peer}`).join(","));
    const child = spawn(this.binary, words.map(String), { stdio: ["ignore", log, log], cwd: this.folder });
    fs.closeSync(log);
    child.once("exit", (code) => (node.ended = code ?? "by a signal"));
    node.ended = null;
    this.processes.set(node.id, child);
  }

  auditLog(node) {
    return path.join(this.folder, `audit${node.id}.log`);
  }

  living() {
    return this.nodes.filter((node) => node.ended === null);
  }

  node(id) {
    return this.nodes.find((node) => node.id === id);
  }

  async ops(node) {
    return Connection.open(node.port, OPS);
  }

  /** The node that leads, once every living node knows it. */
  async leader() {
    return until("a leader that all nodes know", async () => {
      const told = new Set();
      for (const node of this.nodes) {
        if (node.ended !== null && !node.killed) throw new Hopeless(`node ${node.id} ended with ${node.ended}: ${this.lastWords(node)}`);
      }
      for (const node of this.living()) {
        const connection = await this.ops(node);
        const info = await connection.map("LOCK.CLUSTER", "INFO").finally(() => connection.close());
        told.add(info.quorum === 1 ? info.leader : 0);
      }
      const [leader] = told;
      return told.size === 1 && leader !== 0 ? this.node(leader) : false;
    });
  }

  lastWords(node) {
    return fs.readFileSync(path.join(this.folder, `node${node.id}.log`), "utf8").trim().split("\n").pop();
  }

  async kill(node) {
    node.killed = true;
    const child = this.processes.get(node.id);
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }

  restart(node) {
    node.killed = false;
    this.launch(node);
  }

  stop() {
    for (const child of this.processes.values()) if (child.exitCode === null && child.signalCode === null) child.kill("SIGKILL");
  }
}
