// Pieces that several pages share.

import { h } from "/ui/dom.js";
import { keyOf, name, NONE, plain } from "/ui/format.js";
import { address } from "/ui/place.js";

export function panel(title, ...content) {
  return h("section", { class: "panel", "aria-label": title }, h("h2", null, title), content);
}

/** Nothing to show, and what to do about it. */
export function empty(what, advice) {
  return h("p", { class: "empty" }, h("strong", null, what), advice ? ` ${advice}` : null);
}

const ADVICE = {
  UNAVAILABLE: "Look at the Overview for what does not serve at the moment.",
  NOPERM: "This user may not see this. Log in as a user who has the right, or ask for it (docs: Users and rights).",
  NOAUTH: "Log in first.",
  UNREACHABLE: "",
  NOTFOUND: "It may be gone already. Go back to the list.",
};

export function trouble(error) {
  const advice = ADVICE[error.code];
  return h("div", { class: "notice bad", role: "alert" }, h("strong", null, error.code === "UNREACHABLE" ? "No answer" : plain(error.code || "Error")), " ", plain(error.message), advice ? h("span", { class: "advice" }, ` ${advice}`) : null);
}

/** A link to a lock's page: in the tier it was seen in, which may be another than its route's. */
export function lockLink(text, key = keyOf(text), inTier = "") {
  const query = inTier ? { tier: String(inTier).toLowerCase() } : {};
  return key ? h("a", { class: "lock-link", href: address("lock", key, query) }, name(text)) : name(text);
}

export function tag(text, kind) {
  return h("span", { class: `tag ${kind || ""}` }, text);
}

export function tier(value) {
  if (!value) return NONE;
  const text = String(value).toLowerCase();
  return tag(plain(text), text === "correctness" ? "strong" : "");
}

/** Label and value pairs. Leaves of nested objects get their path as label. */
export function pairs(entries) {
  return h("dl", { class: "pairs" }, entries.map(([label, value]) => h("div", { "data-key": `pair ${label}` }, h("dt", null, label), h("dd", null, value))));
}

export function flatten(value, path = "") {
  if (value === null || value === undefined) return path ? [[path, NONE]] : [];
  if (typeof value !== "object") return [[path, value]];
  return Object.entries(value).flatMap(([field, inner]) => flatten(inner, path ? `${path} ${words(field)}` : words(field)));
}

export function words(field) {
  return plain(String(field).replaceAll("_", " ").replaceAll("-", " "));
}
