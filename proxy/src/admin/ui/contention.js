// Where clients wait: names and prefixes by the time waited for them.

import { get } from "/ui/api.js";
import { h, s, update } from "/ui/dom.js";
import { count, ms, name } from "/ui/format.js";
import { empty, lockLink, panel } from "/ui/parts.js";
import { address } from "/ui/place.js";
import { poll } from "/ui/poll.js";
import { table } from "/ui/table.js";

export const title = "Contention";
const EVERY_MS = 5000;

export function mount({ root, signal, query, remember, failed }) {
  let by = query.get("by") === "prefix" ? "prefix" : "name";
  const problem = h("div", null);
  const view = h("div", { id: "result" }, h("p", { class: "muted asking" }, "Asking the node…"));
  const radio = (value, text) => h("label", null, h("input", { type: "radio", name: "by", value, checked: by === value, onchange: () => { by = value; remember({ by: by === "name" ? "" : by }); again(); } }), text);
  root.append(h("fieldset", { class: "kinds" }, h("legend", null, "Group by"), radio("name", "name"), radio("prefix", "prefix")), problem, view);
  const again = poll(EVERY_MS, signal, async () => {
    const asked = by;
    try {
      const data = await get("contention", { by: asked }, signal);
      update(problem);
      if (asked === by) update(view, draw(data.rows, by));
    } catch (error) {
      failed(error, problem);
    }
  });
}

function draw(rows, by) {
  const top = Math.max(1, ...rows.map((row) => row.wait_ms_total || 0));
  return panel(
    by === "name" ? "Names by time waited" : "Prefixes by time waited",
    h("p", { class: "hint" }, "Waits that ended with a grant in the last 10 to 20 minutes, as this node has seen them: of the 100 names most waited for, those you may see."),
    rows.length
      ? table({
          caption: by === "name" ? "Names by time waited" : "Prefixes by time waited",
          columns: [
            { title: by === "name" ? "Name" : "Prefix", head: true, cell: (row) => (by === "name" ? lockLink(row.name, row.key, "correctness") : /\\/.test(row.name) ? name(row.name) : h("a", { href: address("locks", "", { match: `${row.name.replace(/[*?[\]]/g, "\\$&")}*`, sort: "waiters" }) }, name(row.name))) },
            { title: "Waited in all", num: true, cell: (row) => [bar((row.wait_ms_total || 0) / top), ms(row.wait_ms_total)] },
            { title: "Waits", num: true, cell: (row) => count(row.waits) },
            { title: "Waiters now", num: true, cell: (row) => count(row.waiters) },
            { title: "Usual hold", num: true, cell: (row) => ms(row.hold_p50_ms) },
            { title: "Wait p99", num: true, cell: (row) => ms(row.wait_p99_ms) },
          ],
          rows,
          key: (row) => `row ${by} ${row.key ?? row.name}`,
        })
      : empty("No wait to show.", "Names appear here once a client has waited for a lock."),
  );
}

function bar(part) {
  return s("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { x: 100 - part * 100, y: 0, width: part * 100, height: 10 }));
}
