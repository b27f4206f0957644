// Is it healthy? One line, the nodes, the last 15 minutes, and where people wait.

import { get } from "/ui/api.js";
import { chart } from "/ui/chart.js";
import { h, update } from "/ui/dom.js";
import { bytes, count, ms, NONE, plain, rate } from "/ui/format.js";
import { empty, lockLink, panel, tag } from "/ui/parts.js";
import { poll } from "/ui/poll.js";
import { table } from "/ui/table.js";

export const title = "Overview";
const EVERY_MS = 3000;

const CAUSES = { expired: "lease ran out", forced: "taken by an operator", wounded: "taken by an older session", session_ended: "session ended", deleted: "key deleted" };

export function mount({ root, signal, announce, failed }) {
  const problem = h("div", null);
  const view = h("div", { class: "stack" }, h("p", { class: "muted asking" }, "Asking the node…"));
  root.append(problem, view);
  let health = null;
  poll(EVERY_MS, signal, async () => {
    try {
      const data = await get("overview", null, signal);
      update(problem);
      if (health !== null && health !== data.health.text) announce(data.health.text);
      health = data.health.text;
      update(view, draw(data));
    } catch (error) {
      failed(error, problem);
    }
  });
}

function draw(data) {
  const held = data.held || {};
  return [
    h("p", { class: `health ${data.health.ok ? "good" : "bad"}`, id: "health" }, h("span", { class: "mark", "aria-hidden": "true" }, data.health.ok ? "✓" : "!"), h("span", null, plain(data.health.text))),
    h(
      "dl",
      { class: "tiles", id: "tiles" },
      tile("held", "Locks held", count(sum(held)), `${count(held.exclusive)} exclusive · ${count(held.shared)} shared · ${count(held.permits)} permits${of2(data)}`),
      tile("waiters", "Waiters", count(data.waiters), `in all queues${of2(data)}`),
      tile("sessions", "Sessions", count(data.sessions), "open"),
      tile("grants", "Grants", `${rate(data.grants_per_s)}/s`, "in the cluster"),
      tile("p99", "Acquire p99", ms(data.acquire_p99_ms), "of the last 10 s, here"),
      tile("memory", "State", bytes(data.state_bytes), data.max_memory ? [meter(data.state_bytes, data.max_memory), `of ${bytes(data.max_memory)}`] : ""),
    ),
    h("div", { class: "charts" }, charts(data.series || []), lost(data.losses || {})),
    panel("Nodes", nodes(data)),
    panel("Most contended names", contended(data.contended || [])),
  ];
}

/** Where there is a Redis, its locks are not counted here. */
function of2(data) {
  return data.has_redis ? " of the correctness tier" : "";
}

/** Grants that ended without their holder's release, since this node started. */
function lost(losses) {
  return panel("Lost locks by cause", table({
    caption: "Locks lost since the start of this node, by cause",
    columns: [
      { title: "Cause", head: true, cell: (row) => row.text },
      { title: "Locks", num: true, cell: (row) => count(row.number) },
    ],
    rows: Object.entries(CAUSES).map(([cause, text]) => ({ cause, text, number: losses[cause] })),
    key: (row) => row.cause,
  }));
}

function sum(held) {
  const known = Object.values(held).filter((value) => typeof value === "number");
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

function tile(id, label, value, note) {
  return h("div", { class: "tile", id: `tile-${id}` }, h("dt", null, label), h("dd", { class: "big" }, value), h("dd", { class: "muted" }, note));
}

function meter(value, max) {
  return h("meter", { min: 0, max: 1, high: 0.8, value: Math.min(1, (value || 0) / max), "aria-label": "State against max-memory" });
}

function charts(series) {
  const points = (field) => series.map((point) => ({ t: point.t, value: point[field] }));
  return [
    chart({ title: "Grants per second", points: points("grants_per_s"), show: rate }),
    chart({ title: "Acquire p99", points: points("p99_ms"), show: ms, kind: "second" }),
    chart({ title: "Locks held", points: points("held"), show: count }),
    chart({ title: "Waiters", points: points("waiters"), show: count, kind: "second" }),
    chart({ title: "Locks lost", points: points("losses"), show: count, kind: "bad" }),
  ];
}

export function role(node) {
  const kind = node.role === "leader" ? "strong" : node.role === "quarantined" ? "bad" : "";
  return tag(plain(node.role), kind);
}

export function up(node) {
  const is = node.up === true || node.up === 1;
  return h("span", { class: is ? "state good" : "state bad" }, is ? "up" : "down");
}

function nodes(data) {
  const rows = data.nodes || [];
  if (!rows.length) return empty("No node is known.", "This node has not heard of a leader yet. Look at Cluster.");
  return table({
    caption: "Nodes of the cluster",
    columns: [
      { title: "Node", head: true, cell: (node) => [count(node.id), node.id === data.node ? h("span", { class: "muted" }, " (this)") : null] },
      { title: "Address", cell: (node) => plain(node.addr) },
      { title: "Role", cell: role },
      { title: "State", cell: up },
      { title: "Lag", num: true, cell: (node) => (node.lag_entries === null || node.lag_entries === undefined ? NONE : `${count(node.lag_entries)}${node.lag_bytes ? ` · ${bytes(node.lag_bytes)}` : ""}`) },
      { title: "Version", num: true, cell: (node) => plain(node.version) },
    ],
    rows,
    key: (node) => `node ${node.id}`,
  });
}

function contended(rows) {
  if (!rows.length) return empty("Nobody had to wait yet.", "Names appear here once a client has waited for a lock.");
  return table({
    caption: "The ten most contended names",
    columns: [
      { title: "Name", head: true, cell: (row) => lockLink(row.name, row.key) },
      { title: "Waited in all", num: true, cell: (row) => ms(row.wait_ms_total) },
      { title: "Waiters now", num: true, cell: (row) => count(row.waiters) },
    ],
    rows,
    key: (row) => row.key,
  });
}
