// Tables that stay tables for screen readers when they are laid out as cards on a narrow screen (hence the roles).

import { h } from "/ui/dom.js";

/**
 * `columns`: {title, cell(row) -> text or node, num?, head? (the row's header), text? (long), sort? (a value of `sort.by`), unseenTitle?}.
 * `key(row)` names a row, so that it stays the same element over updates.
 */
export function table({ caption, columns, rows, key, sort, showCaption }) {
  return h(
    "table",
    { role: "table", class: columns.length > 4 ? "many" : columns.length > 2 ? "some" : null },
    h("caption", { class: showCaption ? null : "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => header(column, sort)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row", "data-key": key ? key(row) : null }, columns.map((column) => cell(column, row))))),
  );
}

function header(column, sort) {
  const sorted = sort && column.sort && sort.by === column.sort;
  const content = sort && column.sort
    ? h("button", { type: "button", class: "sort", onclick: () => sort.choose(column.sort) }, column.title, h("span", { "aria-hidden": "true", class: "arrow" }, sorted ? (column.sort === "ttl" ? " ▲" : " ▼") : ""))
    : column.unseenTitle
      ? h("span", { class: "unseen" }, column.title)
      : column.title;
  const order = sorted ? (column.sort === "ttl" ? "ascending" : "descending") : null;
  return h("th", { role: "columnheader", scope: "col", class: column.num ? "num" : null, "aria-sort": order }, content);
}

function cell(column, row) {
  const content = column.cell(row);
  const props = { class: column.num ? "num" : column.text ? "text" : null, "data-label": column.unseenTitle ? null : column.title };
  return column.head
    ? h("th", { role: "rowheader", scope: "row", ...props }, content)
    : h("td", { role: "cell", ...props }, h("span", { class: "cell" }, content));
}
