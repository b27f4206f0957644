// A small line chart over time with its numbers in a table below, which screen readers and everybody else can open.

import { h, s } from "/ui/dom.js";
import { clock, NONE } from "/ui/format.js";
import { table } from "/ui/table.js";

const WIDTH = 300;
const HEIGHT = 64;
const TABLE_ROWS_MAX = 30;

/** A round number at or above the largest value. */
function ceiling(values) {
  const top = Math.max(0, ...values.filter((value) => value !== null && value !== undefined));
  if (top === 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((factor) => factor * unit).find((value) => value >= top);
}

/** `points`: [{t, value}], oldest first; null values are gaps. `show` turns a value into text. */
export function chart({ title, points, show, now, kind }) {
  const top = ceiling(points.map((point) => point.value));
  const x = (index) => (points.length < 2 ? WIDTH : (index * WIDTH) / (points.length - 1));
  const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 6);
  const known = points.filter((point) => point.value !== null && point.value !== undefined);
  const last = now === undefined ? (known.length ? known[known.length - 1].value : null) : now;
  const readout = h("span", { class: "readout", "aria-hidden": "true" });
  const cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT, x1: -9, x2: -9, "data-own": "" });
  const summary = known.length
    ? `${title}: now ${show(last)}, highest ${show(Math.max(...known.map((point) => point.value)))} in the last ${span(points)}`
    : `${title}: no data yet`;
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": summary, class: `plot ${kind || ""}` },
    s("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(top), y2: y(top) }),
    s("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(top / 2), y2: y(top / 2) }),
    s("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
    runs(points).map((run) => [
      s("path", { class: "area", d: `M${x(run[0])},${HEIGHT - 1}${run.map((index) => `L${x(index)},${y(points[index].value)}`).join("")}L${x(run[run.length - 1])},${HEIGHT - 1}Z` }),
      s("path", { class: "line", d: run.map((index, first) => `${first === 0 ? "M" : "L"}${x(index)},${y(points[index].value)}`).join("") + (run.length === 1 ? "h0.01" : "") }),
    ]),
    cursor,
  );
  drawing.onpointermove = (event) => {
    if (!points.length) return;
    const svg = event.currentTarget;
    const box = svg.getBoundingClientRect();
    const index = Math.max(0, Math.min(points.length - 1, Math.round(((event.clientX - box.left) / box.width) * (points.length - 1))));
    const line = svg.querySelector(".cursor");
    line.setAttribute("x1", x(index));
    line.setAttribute("x2", x(index));
    const value = points[index].value;
    svg.parentNode.querySelector(".readout").textContent = `${clock(points[index].t)}  ${value === null || value === undefined ? NONE : show(value)}`;
  };
  drawing.onpointerleave = (event) => {
    const svg = event.currentTarget;
    const line = svg.querySelector(".cursor");
    line.setAttribute("x1", -9);
    line.setAttribute("x2", -9);
    svg.parentNode.querySelector(".readout").textContent = "";
  };
  return h(
    "figure",
    { class: "chart", "data-key": `chart ${title}` },
    h("figcaption", null, h("span", { class: "chart-title" }, title), h("span", { class: "chart-now" }, last === null ? NONE : show(last))),
    drawing,
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", null, points.length ? clock(points[0].t) : ""), h("span", { "data-own": "" }, readout), h("span", null, `top ${show(top)}`)),
    h("details", null, h("summary", null, `${title} as a table`), numbers(title, points, show)),
  );
}

function span(points) {
  if (points.length < 2) return "10 seconds";
  const scale = points[0].t < 1e11 ? 1 : 1000;
  const minutes = Math.round((points[points.length - 1].t - points[0].t) / scale / 60);
  return minutes < 1 ? "minute" : `${minutes} minutes`;
}

/** Runs of neighbouring points that have a value, as indexes. */
function runs(points) {
  const found = [];
  points.forEach((point, index) => {
    if (point.value === null || point.value === undefined) return;
    const run = found[found.length - 1];
    if (run && run[run.length - 1] === index - 1) run.push(index);
    else found.push([index]);
  });
  return found;
}

function numbers(title, points, show) {
  const step = Math.max(1, Math.ceil(points.length / TABLE_ROWS_MAX));
  const rows = points.filter((_, index) => (points.length - 1 - index) % step === 0).reverse();
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, numbers` }, table({
    caption: title,
    columns: [
      { title: "Time", head: true, cell: (row) => clock(row.t) },
      { title: "Value", num: true, cell: (row) => (row.value === null || row.value === undefined ? NONE : show(row.value)) },
    ],
    rows,
  }));
}
