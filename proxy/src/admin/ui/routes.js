// Which tier would this name get, and why?

import { get } from "/ui/api.js";
import { h, update } from "/ui/dom.js";
import { name, plain } from "/ui/format.js";
import { field } from "/ui/locks.js";
import { empty, panel, tier } from "/ui/parts.js";
import { table } from "/ui/table.js";

export const title = "Routes";

export function mount({ root, signal, query, remember, announce, failed }) {
  const problem = h("div", null);
  const answer = h("div", { id: "answer" });
  const list = h("div", { id: "routes" });
  const input = h("input", { id: "name", type: "text", value: query.get("name") || "", placeholder: "wallet:7", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { class: "filter" }, field("name", "Name of a lock", input), h("button", { type: "submit", class: "primary" }, "Which tier?"));
  form.onsubmit = (event) => {
    event.preventDefault();
    remember({ name: input.value });
    load();
  };
  root.append(form, problem, answer, list);

  async function load() {
    try {
      const data = await get("routes", { name: input.value }, signal);
      update(problem);
      if (data.answer && input.value) {
        update(answer, h("p", { class: "health good" }, h("span", null, name(input.value), " goes to ", tier(data.answer.tier), ": ", plain(data.answer.why))));
        announce(`${input.value} goes to ${data.answer.tier}`);
      } else update(answer);
      update(list, panel("Routes in force",
        h("p", { class: "hint" }, "The first pattern that matches decides; without one the default tier, ", tier(data.default_tier), ". Change them with LOCK.CLUSTER SET route."),
        data.routes.length
          ? table({
              caption: "Routes in force",
              columns: [
                { title: "Order", num: true, cell: (row) => String(row.order) },
                { title: "Pattern", head: true, cell: (row) => name(row.match) },
                { title: "Tier", cell: (row) => tier(row.tier) },
              ],
              rows: data.routes.map((route, index) => ({ order: index + 1, ...route })),
              key: (row) => `route ${row.order}`,
            })
          : empty("There are no routes.", "Every name goes to the default tier.")));
    } catch (error) {
      failed(error, problem);
    }
  }

  load();
}
