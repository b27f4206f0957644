// One lock: who holds it, who waits and for how long, how its last grants ended, and what happens to it now.

import { feed, get, post } from "/ui/api.js";
import { chainPicture } from "/ui/chain.js";
import { confirm } from "/ui/dialog.js";
import { h, update } from "/ui/dom.js";
import { eventRow, EVENT_COLUMNS } from "/ui/events.js";
import { clock, count, ms, name, NONE, plain, plural, ttl } from "/ui/format.js";
import { mode } from "/ui/locks.js";
import { empty, pairs, panel, tag, tier } from "/ui/parts.js";
import { poll } from "/ui/poll.js";
import { table } from "/ui/table.js";

export const title = "Lock";
const EVERY_MS = 2000;
const SOON_MS = 400;
const EVENTS_MAX = 50;
const ENDINGS = { released: "released", expired: "lease ran out", forced: "taken by an operator", wounded: "taken by an older session", session_ended: "session ended", deleted: "key deleted", flushed: "flushed", replaced: "key written anew", converted: "converted to another mode" };

export function mount({ root, heading, signal, rest, query, who, announce, failed }) {
  const key = rest;
  // Where it was seen; without it the node's routes decide.
  const inTier = query.get("tier") || "";
  const problem = h("div", null);
  const view = h("div", { class: "stack" }, h("p", { class: "muted asking" }, "Asking the node…"));
  const live = h("div", null);
  root.append(h("p", { class: "crumb" }, h("a", { href: "#/locks" }, "All locks")), problem, view, live);

  const events = [];
  let feedState = "connecting";
  let feedOpen = false;
  let known = null;
  let due = null;

  const again = poll(EVERY_MS, signal, async () => {
    try {
      const data = await get(...pathOf(key, "", inTier), signal);
      update(problem);
      update(heading, name(data.info.resource));
      document.title = `${plain(data.info.resource)} · Redfence`;
      const state = data.info.state === "held" ? `held, ${plural(data.info.waiters, "waiter")}` : "free";
      if (known !== null && known !== state) announce(`The lock is now ${state}`);
      known = state;
      update(view, draw(data));
      if (!feedOpen) follow();
    } catch (error) {
      failed(error, problem);
    }
  });

  function follow() {
    feedOpen = true;
    feed(globOf(key), {
      event: (event) => {
        events.unshift({ ...event, at: Date.now() });
        events.length = Math.min(events.length, EVENTS_MAX);
        soon();
      },
      gap: (lost) => {
        events.unshift({ gap: lost, at: Date.now() });
        soon();
      },
      state: (state) => {
        feedState = state;
        drawEvents();
      },
    }, signal);
    drawEvents();
  }

  /** A busy lock has hundreds of events a second: the page asks and draws a few times. */
  function soon() {
    if (due !== null) return;
    due = setTimeout(() => {
      due = null;
      if (signal.aborted) return;
      drawEvents();
      again();
    }, SOON_MS);
  }

  function drawEvents() {
    update(live, panel(
      "Live events",
      h("p", { class: "hint" }, feedState === "live" ? "Events of this name appear here as they happen." : feedState === "lost" ? "The live feed is interrupted; it is tried again." : "Connecting to the live feed…"),
      events.length ? table({ caption: "Live events of this lock", columns: EVENT_COLUMNS.filter((column) => column.title !== "Name"), rows: events, key: eventRow }) : null,
    ));
  }

  async function take(holder, info) {
    const done = await confirm({
      title: "Force-release this lock?",
      text: [
        h("p", null, "The holder loses ", name(info.resource), " at once and the next in line gets it. The old holder may still be at work: this is safe only where the resource checks the fence."),
        holder ? pairs([["owner", name(holder.owner)], ["fence", String(holder.fence)]]) : null,
      ],
      button: "Force-release",
      run: (reason) => post(postPath(key), { reason, ...(holder && holder.fence ? { fence: holder.fence } : {}), ...(info.tier ? { tier: info.tier.toLowerCase() } : {}) }),
    });
    if (done) {
      announce(done.released ? "Released" : "It was free already");
      again();
    }
  }

  function draw({ info, explain, recent }) {
    const held = info.state === "held";
    const holders = info.holders || [];
    const holdersAll = info.holders_total ?? holders.length;
    const queue = (explain && explain.queue) || [];
    const may = who.may && who.may.force_release;
    return [
      h("section", { class: "panel", "aria-label": "State" },
        h("div", { class: "headline" },
          tag(held ? "held" : "free", held ? "strong" : "good"), mode(info.mode), tier(info.tier),
          h("span", { class: "muted" }, plural(info.waiters, "waiter")),
          held && may && holdersAll !== 1 ? h("button", { type: "button", class: "danger", onclick: () => take(null, info) }, "Force-release…") : null),
        pairs([
          ["Last fence", info.fence ? String(info.fence) : NONE],
          ...(held ? [["Time left", ttl(info.ttl, info.session)], ["Held for", ms(info.held_ms)]] : []),
          ...(info.max ? [["Permits in all", count(info.max)]] : []),
          ["Usual hold", past(explain, "hold")],
          ["Usual wait", past(explain, "wait")],
          ...(queue.length ? [["End of the queue", explain.eta_ms === null || explain.eta_ms === undefined ? "not known yet" : about(explain.eta_ms)]] : []),
        ])),
      h("div", { class: "columns wide" },
        panel("Holders", some(holders, info.holders_total, info.holders_more), holders.length ? holderTable(holders, may ? (holder) => take(holder, info) : null) : empty("Nobody holds it.", "The next LOCK.ACQUIRE of this name is granted at once.")),
        panel("Queue", some(queue, explain && explain.queue_total, explain && explain.queue_more), queue.length ? queueTable(queue, explain) : info.waiters ? empty(`${plural(info.waiters, "client")} wait.`, "This user may not see who.") : empty("Nobody waits.", held ? "A client that asks with WAIT stands here." : ""))),
      explain && (queue.length || (explain.blocked_by || []).length) ? panel("Who waits for whom", chainPicture(info.resource, explain, holders)) : null,
      panel("Last fences", recent && recent.length
        ? table({
            caption: "Last fences and how they ended",
            columns: [
              { title: "Fence", head: true, cell: (row) => String(row.fence) },
              { title: "Ended", cell: (row) => ENDINGS[row.ended] || plain(row.ended) },
              { title: "When", num: true, cell: (row) => (row.at_ms ? clock(row.at_ms) : NONE) },
            ],
            rows: recent,
            key: (row) => `fence ${row.fence}`,
          })
        : empty("No grant of this name has ended that this node remembers.", "")),
    ];
  }
}

function past(explain, what) {
  if (!explain || explain[`${what}_p50_ms`] === null || explain[`${what}_p50_ms`] === undefined) return "no past yet";
  return `${ms(explain[`${what}_p50_ms`])} · p99 ${ms(explain[`${what}_p99_ms`])}`;
}

/** Where a list is not the whole. */
function some(list, total, more) {
  return total > list.length || more ? h("p", { class: "hint" }, `The first ${count(list.length)} of ${count(total)}${more ? " or more" : ""}.`) : null;
}

/** Where the API has this lock. A browser takes dots alone for a folder, however they are encoded: these names go in the query. */
function isDots(key) {
  return /^(%2E|\.){1,2}$/i.test(key);
}

/** The path and the words of its query. */
function pathOf(key, action, inTier) {
  const words = inTier ? { tier: inTier } : {};
  return isDots(key) ? [`lock${action}`, { ...words, name: decodeURIComponent(key) }] : [`locks/${key}${action}`, words];
}

function postPath(key) {
  return isDots(key) ? `lock/force-release?name=${key}` : `locks/${key}/force-release`;
}

/** The glob that matches this key alone, encoded as the key is: what means something in a glob is escaped. */
function globOf(key) {
  return key.replace(/%(2A|3F|5B|5C|5D)/gi, "%5C$&");
}

function holderTable(holders, take) {
  const some = (field) => holders.some((holder) => holder[field] !== null && holder[field] !== undefined);
  return table({
    caption: "Holders",
    columns: [
      { title: "Owner", head: true, cell: (holder) => name(holder.owner) },
      { title: "Fence", num: true, cell: (holder) => String(holder.fence) },
      { title: "Session", cell: (holder) => (holder.session ? h("code", null, plain(holder.session)) : NONE) },
      { title: "Time left", num: true, cell: (holder) => ttl(holder.ttl, holder.session) },
      { title: "Held for", num: true, cell: (holder) => ms(holder.held_ms) },
      ...(some("permits") ? [{ title: "Permits", num: true, cell: (holder) => count(holder.permits) }] : []),
      ...(some("value") ? [{ title: "Value", text: true, cell: (holder) => name(holder.value, "name small") }] : []),
      ...(take ? [{ title: "Actions", unseenTitle: true, cell: (holder) => h("button", { type: "button", class: "danger small", onclick: () => take(holder) }, "Force-release…") }] : []),
    ],
    rows: holders,
    key: (holder) => `holder ${holder.fence} ${holder.owner}`,
  });
}

/** The estimate of each place: the end of the queue is known, and where all are exclusive each turn takes an ordinary hold. */
function eta(row, queue, explain) {
  const end = explain.eta_ms;
  if (end === null || end === undefined) return NONE;
  if (row === queue[queue.length - 1]) return about(end);
  const hold = explain.hold_p50_ms;
  if (hold === null || hold === undefined || queue.some((one) => one.mode !== "exclusive")) return NONE;
  return about(end - (queue.length - 1 - queue.indexOf(row)) * hold);
}

function about(estimate) {
  return estimate < 1 ? "any moment" : `≈ ${ms(estimate)}`;
}

function queueTable(queue, explain) {
  return table({
    caption: "Queue, first in line first",
    columns: [
      { title: "Place", num: true, cell: (row) => count(row.position) },
      { title: "Owner", head: true, cell: (row) => name(row.owner) },
      { title: "Session", cell: (row) => (row.session ? h("code", null, plain(row.session)) : NONE) },
      { title: "Mode", cell: (row) => mode(row.mode) },
      { title: "Waits for", num: true, cell: (row) => ms(row.waited_ms) },
      { title: "Estimate", num: true, cell: (row) => eta(row, queue, explain) },
    ],
    rows: queue,
    key: (row) => `waiter ${row.owner}`,
  });
}
