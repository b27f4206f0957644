// The picture of LOCK.EXPLAIN: who waits for this lock, who holds it, and what the holders wait for themselves.

import { h, s } from "/ui/dom.js";
import { keyOf, ms, plain, plural } from "/ui/format.js";

const BOX = { width: 210, height: 46 };
const GAP = { x: 18, y: 34 };
const HOLDERS_MAX = 4;
const TEXT_CHARS_MAX = 28;

function short(text) {
  const shown = [...plain(text)];
  return shown.length > TEXT_CHARS_MAX ? `${shown.slice(0, TEXT_CHARS_MAX - 1).join("")}…` : shown.join("");
}

function holderText(owner, session) {
  return { kind: "holder", text: owner || "unknown owner", note: session ? `session ${plain(session)}` : "" };
}

function lockText(resource, note) {
  return { kind: "lock", text: resource, note };
}

/** One column a holder: the holder, the lock it waits for, that lock's holder, and so on down. */
function columns(explain, all) {
  const chains = explain.blocked_by || [];
  // Sessions of other users are not told: a sole holder is known all the same.
  const isOf = (chain, holder) => (holder.session ? chain[0].session === holder.session : all.length === 1);
  const chainOf = (holder) => chains.find((chain) => chain.length && isOf(chain, holder));
  const holders = [...all].sort((a, b) => (chainOf(b) ? 1 : 0) - (chainOf(a) ? 1 : 0));
  return {
    left: Math.max(0, holders.length - HOLDERS_MAX),
    shown: holders.slice(0, HOLDERS_MAX).map((holder) => {
      const boxes = [{ ...holderText(holder.owner, holder.session), link: "is held by" }];
      for (const step of chainOf(holder) || []) {
        boxes.push({ ...lockText(step.waits_for, `${plain(step.mode || "")} · waits ${ms(step.waited_ms)}`), link: "waits for" });
        boxes.push({ ...holderText(step.held_by, step.held_by_session), link: "is held by" });
      }
      return boxes;
    }),
  };
}

export function chainPicture(resource, explain, holders) {
  const queue = explain.queue || [];
  const { shown, left } = columns(explain, holders);
  if (!shown.length && !queue.length) return null;
  const across = Math.max(1, shown.length);
  const width = across * BOX.width + (across - 1) * GAP.x;
  const rows = (queue.length ? 1 : 0) + 1 + Math.max(0, ...shown.map((column) => column.length));
  const height = rows * BOX.height + (rows - 1) * GAP.y;
  const middle = (width - BOX.width) / 2;
  const nodes = [];
  let row = 0;
  const top = (at) => at * (BOX.height + GAP.y);
  if (queue.length) {
    nodes.push(box(middle, top(0), { kind: "queue", text: plural(queue.length, "waiter"), note: `first: ${short(queue[0].owner)}` }));
    nodes.push(arrow(middle, top(0), middle, top(1), "wait for"));
    row = 1;
  }
  nodes.push(box(middle, top(row), { ...lockText(resource, "this lock"), here: true }));
  shown.forEach((column, at) => {
    const x = at * (BOX.width + GAP.x);
    column.forEach((one, depth) => {
      const from = depth === 0 ? [middle, top(row)] : [x, top(row + depth)];
      nodes.push(arrow(from[0], from[1], x, top(row + depth + 1), one.link));
      nodes.push(box(x, top(row + depth + 1), one));
    });
  });
  const svg = s("svg", { class: "chain", viewBox: `-2 -2 ${width + 4} ${height + 4}`, role: "img", "aria-labelledby": "chain-title" }, s("title", { id: "chain-title" }, "Who waits for whom. The same as text is below."), nodes);
  // By CSSOM, which a strict policy allows: the drawing is never larger than life.
  svg.style.maxWidth = `${width + 4}px`;
  return h("div", { class: "chain-frame" }, svg, left ? h("p", { class: "hint" }, `${plural(left, "more holder")} in the table of holders.`) : null, asText(resource, queue, shown));
}

function box(x, y, { kind, text, note, here }) {
  const key = kind === "lock" && !here ? keyOf(text) : null;
  const content = [
    s("title", null, plain(text)),
    s("rect", { x, y, width: BOX.width, height: BOX.height, rx: kind === "lock" ? 4 : 23, class: `box ${kind}${here ? " here" : ""}` }),
    s("text", { x: x + BOX.width / 2, y: y + 20, class: "box-text" }, short(text)),
    s("text", { x: x + BOX.width / 2, y: y + 36, class: "box-note" }, note || ""),
  ];
  // For the pointer; the text below has the same links for the keyboard and for screen readers.
  return s("g", key ? { class: "goes", onclick: () => (location.hash = `#/lock/${key}`) } : null, content);
}

function arrow(fromX, fromY, toX, toY, label) {
  const x1 = fromX + BOX.width / 2;
  const y1 = fromY + BOX.height;
  const x2 = toX + BOX.width / 2;
  const half = (y1 + toY) / 2;
  return s(
    "g",
    null,
    s("path", { class: "arrow", d: x1 === x2 ? `M${x1},${y1}V${toY - 5}` : `M${x1},${y1}V${half - 10}H${x2}V${toY - 5}` }),
    s("path", { class: "arrow-head", d: `M${x2 - 4},${toY - 7}h8l-4,7z` }),
    s("text", { x: x2 + 8, y: half + 5, class: "arrow-label" }, label),
  );
}

function asText(resource, queue, shown) {
  const item = (one) => {
    const key = one.kind === "lock" ? keyOf(one.text) : null;
    const label = h("bdi", { class: "name" }, plain(one.text));
    return h("li", null, one.link, " ", key ? h("a", { href: `#/lock/${key}` }, label) : label, one.note ? ` (${one.note})` : null);
  };
  return h(
    "details",
    null,
    h("summary", null, "The same as text"),
    queue.length ? h("p", null, `${plural(queue.length, "waiter")} for `, h("bdi", { class: "name" }, plain(resource)), ".") : null,
    shown.map((column) => h("ol", { class: "chain-text" }, column.map(item))),
  );
}
