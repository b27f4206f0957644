// Sessions: whose, how long they live without a keep-alive, what they hold and wait for.

import { get, post } from "/ui/api.js";
import { confirm } from "/ui/dialog.js";
import { h, update } from "/ui/dom.js";
import { count, ms, name, NONE, plain, plural } from "/ui/format.js";
import { empty, lockLink, pairs, panel, tag } from "/ui/parts.js";
import { table } from "/ui/table.js";

export const title = "Sessions";

export function mount({ root, signal, who, announce, failed }) {
  let before = [];
  let cursor = "0";
  const problem = h("div", null);
  const view = h("div", { id: "result" }, h("p", { class: "muted asking" }, "Asking the node…"));
  root.append(problem, view);

  async function load() {
    try {
      const data = await get("sessions", { cursor: cursor === "0" ? "" : cursor }, signal);
      update(problem);
      update(view, draw(data));
    } catch (error) {
      failed(error, problem);
    }
  }

  async function close(session) {
    const done = await confirm({
      title: "End this session?",
      text: [h("p", null, `All its locks (${count(session.locks)}) end in one step and their waiters are served. Its client is told that the session is gone.`), pairs([["session", h("code", null, plain(session.id))], ["user", name(session.user)], ["label", name(session.label)]])],
      button: "End session",
      run: (reason) => post(`sessions/${encodeURIComponent(session.id)}/close`, { reason }),
    });
    if (done) {
      announce(`Session ended, ${plural(done.released, "lock")} released`);
      load();
    }
  }

  function draw(data) {
    const rows = data.sessions;
    const more = data.cursor && data.cursor !== "0";
    const may = who.may && who.may.close_session;
    return panel(
      "Open sessions",
      rows.length
        ? table({
            caption: "Open sessions",
            columns: [
              { title: "Session", head: true, cell: (one) => h("code", null, plain(one.id)) },
              { title: "User", text: true, cell: (one) => name(one.user) },
              { title: "Label", text: true, cell: (one) => name(one.label, "name small") },
              { title: "Time left", num: true, cell: (one) => ms(one.ttl_ms) },
              { title: "Locks", num: true, cell: (one) => count(one.locks) },
              { title: "Policy", cell: (one) => tag(plain(one.policy)) },
              { title: "Waits for", text: true, cell: (one) => (one.waiting_for === null || one.waiting_for === undefined ? NONE : lockLink(one.waiting_for, one.waiting_for_key)) },
              ...(may ? [{ title: "Actions", unseenTitle: true, cell: (one) => h("button", { type: "button", class: "danger small", "aria-label": `End… session ${one.id}`, onclick: () => close(one) }, "End…") }] : []),
            ],
            rows,
            key: (one) => `session ${one.id}`,
          })
        : more ? empty("None of those looked at is yours.", "More sessions are behind the next page.") : empty("No session is open.", "Clients open one with LOCK.SESSION OPEN; locks without a session live by their own ttl."),
      h("div", { class: "buttons pager" },
        h("button", { type: "button", disabled: before.length === 0, onclick: () => { cursor = before.pop(); load(); } }, "Previous page"),
        h("button", { type: "button", disabled: !more, onclick: () => { before.push(cursor); cursor = String(data.cursor); load(); } }, "Next page"),
        h("button", { type: "button", onclick: load }, "Refresh")),
    );
  }

  load();
}
