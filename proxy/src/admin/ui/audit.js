// The last lines of this node's audit log.

import { get } from "/ui/api.js";
import { h, update } from "/ui/dom.js";
import { count, day, name, NONE, plain } from "/ui/format.js";
import { choice, field } from "/ui/locks.js";
import { empty, panel, tag } from "/ui/parts.js";
import { table } from "/ui/table.js";

export const title = "Audit";

export function mount({ root, signal, announce, failed }) {
  const problem = h("div", null);
  const view = h("div", { id: "result" }, h("p", { class: "muted asking" }, "Asking the node…"));
  const select = choice("count", "100", [["50", "50"], ["100", "100"], ["500", "500"]]);
  select.onchange = load;
  root.append(h("div", { class: "filter" }, field("count", "Last lines", select), h("button", { type: "button", onclick: load }, "Refresh")), problem, view);

  async function load() {
    try {
      const data = await get("audit", { count: select.value }, signal);
      update(problem);
      update(view, draw(data.lines, data.enabled));
      announce(`${count(data.lines.length)} lines shown`);
    } catch (error) {
      update(view);
      failed(error, problem);
    }
  }

  load();
}

const SHOWN = new Set(["time", "event", "user", "client", "command", "arguments", "result", "reason", "object"]);

function rest(line) {
  const others = Object.entries(line).filter(([field, value]) => !SHOWN.has(field) && value !== null && value !== undefined);
  const reason = line.reason ? `reason: ${line.reason}` : "";
  return [reason, ...others.map(([field, value]) => `${field} ${typeof value === "object" ? JSON.stringify(value) : value}`)].filter(Boolean).join(" · ");
}

function draw(lines, enabled) {
  return panel(
    "Administrative acts, refusals and failed logins",
    h("p", { class: "hint" }, "Of this node only, newest first. The whole log is in the file that --audit-log names."),
    lines.length
      ? table({
          caption: "Audit log",
          columns: [
            { title: "When", head: true, cell: (line) => h("span", { class: "nowrap" }, day(line.time)) },
            { title: "Event", cell: (line) => tag(plain(line.event ?? "act"), line.event === "denied" || line.event === "login_failed" ? "warn" : "") },
            { title: "User", text: true, cell: (line) => name(line.user) },
            { title: "From", cell: (line) => plain(line.client) },
            { title: "What", text: true, cell: (line) => name([line.command, ...(line.arguments ?? [])].filter((word) => word !== undefined && word !== null).join(" ") || line.object || NONE, "name small") },
            { title: "Result", cell: (line) => tag(plain(line.result), line.result === "ok" ? "good" : "warn") },
            { title: "More", text: true, cell: (line) => (rest(line) ? name(rest(line), "name small") : "") },
          ],
          rows: lines,
        })
      : enabled === false
        ? empty("This node keeps no audit log.", "Start it with --audit-log FILE.")
        : empty("Nothing was written yet.", "Administrative commands, refused permissions and failed logins appear here."),
  );
}
