// What happens to locks, live: filter, pause, download.

import { AWAY, feed } from "/ui/api.js";
import { h, update } from "/ui/dom.js";
import { clock, count, name, NONE, plain, plural } from "/ui/format.js";
import { field } from "/ui/locks.js";
import { empty, lockLink, panel, tag } from "/ui/parts.js";
import { table } from "/ui/table.js";

export const title = "Events";
const KEPT_MAX = 5000;
const SHOWN_MAX = 200;
const DRAW_EVERY_MS = 250;
const TELL_EVERY_MS = 10_000;
const KINDS = ["acquired", "renewed", "released", "expired", "queued", "abandoned", "session_ended"];
const WARNING = new Set(["expired", "session_ended", "abandoned"]);

let number = 0;

/** The key of an event's row. Events have no id of their own that is unique over nodes and gaps. */
export function eventRow(event) {
  if (event.row === undefined) event.row = ++number;
  return `event ${event.row}`;
}

export const EVENT_COLUMNS = [
  { title: "Time", cell: (event) => clock(event.at) },
  { title: "Event", cell: (event) => (event.gap ? tag("gap", "warn") : tag(plain(event.event).replaceAll("_", " "), event.cause || WARNING.has(event.event) ? "warn" : "")) },
  { title: "Name", head: true, cell: (event) => (event.gap ? (event.gap === AWAY ? "Events while this tab was hidden are not shown" : `${plural(event.gap, "event")} left out: too many at once, or too large`) : lockLink(event.name ?? event.resource, event.key, event.tier)) },
  { title: "Owner", text: true, cell: (event) => (event.gap ? "" : name(event.owner, "name small")) },
  { title: "Fence", num: true, cell: (event) => (event.gap ? "" : event.fence ? String(event.fence) : NONE) },
  { title: "More", text: true, cell: (event) => (event.gap ? "" : more(event)) },
];

function more(event) {
  const parts = [event.mode, event.cause && `cause ${event.cause}`, event.value && `value ${event.value}`].filter(Boolean);
  return parts.length ? name(parts.join(" · "), "name small") : "";
}

export function mount({ root, signal, query, remember, announce }) {
  let kept = [];
  let shown = [];
  let paused = false;
  let seen = 0;
  let told = 0;
  let state = "connecting";
  let match = query.get("match") || "";
  let connection = null;
  const hidden = new Set();

  const list = h("div", { id: "events" });
  const status = h("p", { class: "hint", id: "feed-state" });
  const input = h("input", { id: "match", type: "search", value: match, placeholder: "* or wallet:*", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { class: "filter", role: "search" }, field("match", "Names that match", input), h("button", { type: "submit", class: "primary" }, "Filter"));
  form.onsubmit = (event) => {
    event.preventDefault();
    match = input.value;
    remember({ match });
    kept = [];
    seen = 0;
    told = 0;
    connect();
    draw();
  };
  const pause = h("button", { type: "button", id: "pause", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    announce(paused ? "Paused" : "Live again");
    draw();
  } }, "Pause");
  const clear = h("button", { type: "button", onclick: () => { kept = []; shown = []; draw(true); announce("Cleared"); } }, "Clear");
  const download = h("button", { type: "button", id: "download", onclick: save }, "Download");
  const kinds = h("fieldset", { class: "kinds" }, h("legend", null, "Show"), KINDS.map((kind) => h("label", null, h("input", { type: "checkbox", checked: true, onchange: (event) => {
    if (event.target.checked) hidden.delete(kind);
    else hidden.add(kind);
    draw(true);
  } }), kind.replaceAll("_", " "))));
  root.append(form, kinds, h("div", { class: "buttons" }, pause, clear, download), status, list);

  function connect() {
    if (connection) connection.abort();
    connection = new AbortController();
    state = "connecting";
    feed(encodeURIComponent(match), {
      event: (event) => add({ ...event, at: Date.now() }),
      gap: (lost) => add({ gap: lost, at: Date.now() }),
      state: (now) => {
        if (state !== now) announce(now === "live" ? "The live feed is on" : "The live feed is interrupted");
        state = now;
        draw();
      },
    }, connection.signal);
  }

  function add(event) {
    kept.unshift(event);
    if (kept.length > KEPT_MAX) kept.length = KEPT_MAX;
    if (!event.gap) seen += 1;
  }

  function save() {
    const lines = [...kept].reverse().map((event) => {
      const { row, at, gap, ...rest } = event;
      return JSON.stringify(gap ? { at: new Date(at).toISOString(), gap } : { at: new Date(at).toISOString(), ...rest });
    });
    const url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" }));
    const link = h("a", { href: url, download: "redfence-events.ndjson" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    announce(`${plural(lines.length, "event")} written to a file`);
  }

  function draw(anyway) {
    if (!paused || anyway) shown = kept.filter((event) => event.gap || !hidden.has(event.event)).slice(0, SHOWN_MAX);
    const live = state === "live" ? (paused ? "Paused; events are still collected" : "Live") : state === "lost" ? "Interrupted; it is tried again by itself" : "Connecting";
    status.textContent = `${live}. ${plural(seen, "event")} since this page was opened; the last ${count(KEPT_MAX)} are kept, the last ${count(SHOWN_MAX)} shown.`;
    update(list, panel("Lock events", shown.length
      ? table({ caption: "Lock events, newest first", columns: EVENT_COLUMNS, rows: shown, key: eventRow })
      : empty("No event yet.", match ? "Nothing happened to the names that match. Filter by * to see all." : "Nothing happens to locks at the moment. Take one to see it: LOCK.ACQUIRE demo 1000")));
  }

  let drawn = -1;
  const drawing = setInterval(() => {
    if (!paused && drawn !== number + seen && !document.hidden) draw();
    drawn = number + seen;
  }, DRAW_EVERY_MS);
  // Not every event: a screen reader would never come to an end.
  const telling = setInterval(() => {
    if (!paused && seen > told) announce(`${plural(seen - told, "new event")}`);
    told = seen;
  }, TELL_EVERY_MS);
  signal.addEventListener("abort", () => {
    clearInterval(drawing);
    clearInterval(telling);
    connection.abort();
  });
  connect();
  draw();
}
