// Numbers, times and names as text for people.

import { h } from "/ui/dom.js";

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const NONE = "–";
/** Names longer than this are cut in tables; the whole is in the tooltip and on the lock's page. */
const LONG_CHARS = 100;

export function count(value) {
  return value === null || value === undefined ? NONE : NUMBER.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value < 100 ? SHORT.format(value) : NUMBER.format(Math.round(value));
}

/** A length of time given in milliseconds. */
export function ms(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return `${SHORT.format(value)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 10_000) return `${(value / 1000).toFixed(1)} s`;
  const seconds = Math.floor(value / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return parts(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return parts(seconds, 3600, "h", 60, "min");
  return parts(seconds, 86_400, "d", 3600, "h");
}

function parts(seconds, large, largeUnit, small, smallUnit) {
  const rest = Math.floor((seconds % large) / small);
  return `${NUMBER.format(Math.floor(seconds / large))} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
}

/** What is left of a lease; -1 is one that ends with its session alone, or a plain key without an end. */
export function ttl(value, session) {
  return value === -1 ? (session ? "with its session" : "no end of its own") : ms(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : SHORT.format(size)} ${units[unit]}`;
}

/** A time on the wall clock, from milliseconds or seconds since 1970. */
export function clock(value) {
  if (value === null || value === undefined) return NONE;
  const date = new Date(typeof value === "number" && value < 1e11 ? value * 1000 : value);
  return Number.isNaN(date.getTime()) ? String(value) : date.toLocaleTimeString("en-GB");
}

export function day(value) {
  const date = new Date(typeof value === "number" && value < 1e11 ? value * 1000 : value);
  if (Number.isNaN(date.getTime())) return String(value);
  return date.toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z");
}

// Characters that are not seen, or that change the order of the text around them: shown by their number.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** A name or an owner as text in which every character is seen. */
export function plain(value) {
  if (value === null || value === undefined) return NONE;
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return text.replace(UNSEEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** The same as an element: text of its own direction that does not turn its surroundings round. */
export function name(value, className = "name") {
  const text = plain(value);
  return h("bdi", { class: className, title: text.length > LONG_CHARS ? text : null }, text);
}

/** The key of a name in paths, where it can be told from its text alone; else null. */
export function keyOf(text) {
  if (typeof text !== "string" || text === "" || /[^\x20-\x7e]|\\/.test(text)) return null;
  return text.replace(/[^A-Za-z0-9\-_.~]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
