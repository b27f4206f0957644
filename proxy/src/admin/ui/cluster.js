// The Raft cluster: members, versions, digests, log, snapshots, settings.

import { get, post } from "/ui/api.js";
import { confirm } from "/ui/dialog.js";
import { h, update } from "/ui/dom.js";
import { bytes, count, NONE, plain } from "/ui/format.js";
import { role, up } from "/ui/overview.js";
import { empty, flatten, pairs, panel } from "/ui/parts.js";
import { poll } from "/ui/poll.js";
import { table } from "/ui/table.js";

export const title = "Cluster";
const EVERY_MS = 3000;

export function mount({ root, signal, who, announce, failed }) {
  const problem = h("div", null);
  const view = h("div", { class: "stack" }, h("p", { class: "muted asking" }, "Asking the node…"));
  root.append(problem, view);
  let leader = null;
  const again = poll(EVERY_MS, signal, async () => {
    try {
      const data = await get("cluster", null, signal);
      update(problem);
      const now = data.info.leader;
      if (leader !== null && leader !== now) announce(now ? `Node ${now} leads now` : "No leader is known");
      leader = now;
      update(view, draw(data));
    } catch (error) {
      failed(error, problem);
    }
  });

  async function transfer(node) {
    const done = await confirm({
      title: `Move the leadership to node ${node.id}?`,
      text: h("p", null, "Commands wait for a moment while node ", String(node.id), " takes over. No lock is lost."),
      button: "Transfer leadership",
      run: (reason) => post("cluster/transfer", { to: node.id, reason }),
    });
    if (done) {
      announce(`Leadership handed to node ${node.id}`);
      again();
    }
  }

  function draw(data) {
    const info = data.info || {};
    const quorum = info.quorum === 1 || info.quorum === true;
    const may = who.may && who.may.transfer;
    const nodes = data.nodes || [];
    return [
      h("p", { class: `health ${quorum ? "good" : "bad"}` }, h("span", { class: "mark", "aria-hidden": "true" }, quorum ? "✓" : "!"), h("span", null, quorum ? `Node ${info.leader} leads in term ${info.term}; a majority of ${info.voters} answers.` : "No quorum: the correctness tier does not serve. Start the nodes that are down; two of three are enough.")),
      panel("Members", nodes.length ? table({
        caption: "Members of the cluster",
        columns: [
          { title: "Node", head: true, cell: (node) => [String(node.id), node.id === info.id ? h("span", { class: "muted" }, " (this)") : null] },
          { title: "Address", cell: (node) => plain(node.addr) },
          { title: "Role", cell: role },
          { title: "State", cell: up },
          { title: "Lag", num: true, cell: (node) => (node.lag_entries === undefined || node.lag_entries === null ? NONE : count(node.lag_entries)) },
          { title: "Version", num: true, cell: (node) => version(data.version, node) },
          ...(may ? [{ title: "Actions", unseenTitle: true, cell: (node) => (node.role === "follower" && (node.up === true || node.up === 1) ? h("button", { type: "button", class: "small", "aria-label": `Make leader… node ${node.id}`, onclick: () => transfer(node) }, "Make leader…") : "") }] : []),
        ],
        rows: nodes,
        key: (node) => `node ${node.id}`,
      }) : empty("No member is known.", "Without a leader this node cannot list them. Start the other nodes.")),
      h("div", { class: "columns" },
        panel("This node", figures({ ...info, elections: data.elections, leader_changes: data.leader_changes })),
        panel("Version", figures(data.version)),
        panel("Digests", figures(data.digests)),
        panel("Log", figures(data.log)),
        panel("Snapshots", figures(data.snapshots)),
        panel("Settings", figures(data.settings))),
    ];
  }
}

function version(versions, node) {
  const members = (versions && versions.members) || {};
  const own = node.version ?? members[node.id];
  return own === undefined || own === null || own === 0 ? NONE : plain(own);
}

/** Whatever there is, with its name and unit. */
function figures(data) {
  const entries = flatten(data);
  if (!entries.length) return empty("Nothing is known.", "");
  return pairs(entries.map(([label, value]) => [label, show(label, value)]));
}

function show(label, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (/bytes|memory/.test(label)) return bytes(value);
    return /term|version|\bid\b/.test(label) ? String(value) : count(value);
  }
  if (/max memory/.test(label) && /^\d+$/.test(value)) return bytes(Number(value));
  return h("bdi", { class: "name small" }, plain(value) || NONE);
}
