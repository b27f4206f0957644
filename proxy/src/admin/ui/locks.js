// Search for held locks: glob, tier, order, page by page.

import { get } from "/ui/api.js";
import { h, update } from "/ui/dom.js";
import { count, ms, name, NONE, plain, plural, ttl } from "/ui/format.js";
import { empty, lockLink, panel, tag, tier } from "/ui/parts.js";
import { table } from "/ui/table.js";

export const title = "Locks";
const COUNTS = ["50", "100", "500"];

export function mount({ root, signal, query, remember, announce, failed }) {
  const search = { match: query.get("match") || "", tier: query.get("tier") || "", sort: query.get("sort") || "name", count: query.get("count") || COUNTS[0] };
  let before = []; // cursors of the pages before this one
  let cursor = "0";
  let asked = 0;
  const problem = h("div", null);
  const result = h("div", { id: "result" });

  const form = h(
    "form",
    { class: "filter", role: "search" },
    field("match", "Names that match", h("input", { id: "match", type: "search", value: search.match, placeholder: "* or wallet:*", autocomplete: "off", spellcheck: "false" })),
    field("tier", "Tier", choice("tier", search.tier, [["", "both"], ["correctness", "correctness"], ["efficiency", "efficiency"]])),
    field("sort", "Order", choice("sort", search.sort, [["name", "by name, each page"], ["waiters", "most waiters"], ["age", "longest held"], ["ttl", "ends soonest"]])),
    field("count", "A page", choice("count", search.count, COUNTS.map((one) => [one, one]))),
    h("button", { type: "submit", class: "primary" }, "Search"),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    begin();
  };
  form.onchange = (event) => {
    if (event.target.id !== "match") begin();
  };
  root.append(form, problem, result);

  function begin() {
    for (const id of Object.keys(search)) search[id] = form.querySelector(`#${id}`).value;
    before = [];
    cursor = "0";
    remember({ match: search.match, tier: search.tier, sort: search.sort === "name" ? "" : search.sort, count: search.count === COUNTS[0] ? "" : search.count });
    load();
  }

  async function load() {
    const turn = ++asked;
    result.setAttribute("aria-busy", "true");
    try {
      const data = await get("locks", { ...search, cursor }, signal);
      if (turn !== asked) return;
      update(problem);
      update(result, draw(data));
      announce(`${plural(data.locks.length, "lock")} shown`);
    } catch (error) {
      if (turn === asked) failed(error, problem);
    }
    result.removeAttribute("aria-busy");
  }

  function draw(data) {
    const more = data.cursor !== "0" && data.cursor !== 0 && data.cursor !== null && data.cursor !== undefined;
    const sort = {
      by: search.sort,
      choose: (by) => {
        form.querySelector("#sort").value = by;
        begin();
      },
    };
    return panel(
      "Held locks",
      h("p", { class: "hint" },
        `${plural(data.locks.length, "lock")} on this page`,
        data.looked_at === null || data.looked_at === undefined ? "" : `, ${count(data.looked_at)} looked at`,
        ".",
        search.sort !== "name" && !data.complete ? " The order is that of the locks looked at; more are on the next pages. Search for fewer names to order them all." : ""),
      (data.missing || []).length ? h("p", { class: "notice bad", role: "alert" }, `Locks of the ${data.missing.join(" and ")} tier are missing: it does not answer at the moment.`) : null,
      data.locks.length
        ? rows(data.locks, sort)
        : more
          ? empty("No match among those looked at.", "More locks are behind the next page.")
          : search.match || search.tier
            ? empty("No held lock matches.", "Try * for all names, or both tiers. A lock that is free is not listed: open its page by its exact name.")
            : empty("No lock is held.", "Take one to see it here: LOCK.ACQUIRE demo 60000"),
      h("div", { class: "buttons pager" },
        h("button", { type: "button", disabled: before.length === 0, onclick: () => turnTo(before.pop()) }, "Previous page"),
        h("button", { type: "button", id: "next", disabled: !more, onclick: () => { before.push(cursor); turnTo(data.cursor); } }, "Next page"),
        h("button", { type: "button", onclick: load }, "Refresh")),
      exact(),
    );
  }

  function turnTo(to) {
    cursor = String(to);
    load();
  }

  function exact() {
    const text = search.match;
    if (!text || /[*?[\]\\]/.test(text)) return null;
    return h("p", { class: "hint" }, "Open the page of exactly ", h("a", { href: `#/lock/${encode(text)}` }, name(text)), ", held or free.");
  }

  load();
}

/** The key of a name that was typed in: its bytes in UTF-8. */
export function encode(text) {
  return [...new TextEncoder().encode(text)].map((byte) => (/[A-Za-z0-9\-_.~]/.test(String.fromCharCode(byte)) ? String.fromCharCode(byte) : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`)).join("");
}

export function field(id, label, control) {
  return h("div", { class: "field" }, h("label", { for: id }, label), control);
}

export function choice(id, value, options) {
  const select = h("select", { id }, options.map(([option, text]) => h("option", { value: option }, text)));
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  return select;
}

export function mode(value) {
  return value ? tag(plain(value)) : NONE;
}

function rows(locks, sort) {
  return table({
    caption: "Held locks",
    columns: [
      { title: "Name", head: true, cell: (lock) => [lockLink(lock.name, lock.key, lock.tier), lock.name_bytes ? h("span", { class: "muted" }, ` a plain key: its name has ${count(lock.name_bytes)} bytes, locks have at most 512`) : null] },
      { title: "Tier", cell: (lock) => tier(lock.tier) },
      { title: "Mode", cell: (lock) => [mode(lock.mode), lock.holders > 1 ? h("span", { class: "muted" }, ` ×${count(lock.holders)}${lock.holders_more ? " or more" : ""}`) : null] },
      { title: "Owner", text: true, cell: (lock) => name(lock.owner, "name small") },
      { title: "Fence", num: true, cell: (lock) => String(lock.fence ?? NONE) },
      { title: "Held for", num: true, sort: "age", cell: (lock) => ms(lock.held_ms) },
      { title: "Time left", num: true, sort: "ttl", cell: (lock) => ttl(lock.ttl_ms, lock.session) },
      { title: "Waiters", num: true, sort: "waiters", cell: (lock) => count(lock.waiters) },
    ],
    rows: locks,
    key: (lock) => `${lock.tier} ${lock.key ?? `long ${locks.indexOf(lock)}`}`,
    sort,
  });
}
