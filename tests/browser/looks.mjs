// What is the same for every page: axe-core, no scrolling sideways, the keyboard; and the pictures of the docs.

import assert from "node:assert/strict";
import path from "node:path";
import { until } from "./until.mjs";

export const PAGES = {
  overview: "#/overview",
  locks: "#/locks?match=*:*&sort=waiters",
  lock: "#/lock/chain%3Aa",
  sessions: "#/sessions",
  contention: "#/contention",
  events: "#/events",
  cluster: "#/cluster",
  routes: "#/routes?name=wallet%3A7",
  audit: "#/audit",
  login: "#/login",
};

/** Of the pictures of pages that are taller than the others. */
const HEIGHTS = { overview: 900, lock: 1160, cluster: 900 };

export async function axe(window) {
  const found = [];
  for (const [name, hash] of Object.entries(PAGES)) {
    await window.go(hash);
    for (const problem of await window.axe()) found.push(`${name}: ${problem}`);
  }
  assert.deepEqual(found, []);
}

/** 360 px is a phone; 640 px is a window of 1280 px at 200 %. */
export async function narrow(window) {
  const wide = [];
  for (const width of [360, 640]) {
    await window.page.setViewportSize({ width, height: 740 });
    for (const [name, hash] of Object.entries(PAGES)) {
      await window.go(hash);
      if ((await window.sideways()) > 0) wide.push(`${name} at ${width} px`);
      if (width === 360) for (const problem of await window.axe()) wide.push(`${name}: ${problem}`);
    }
  }
  assert.deepEqual(wide, []);
}

export async function keyboard(window) {
  await window.go("#/overview");
  await window.page.keyboard.press("Tab");
  assert.equal(await window.page.evaluate(() => document.activeElement.id), "skip");
  await window.page.keyboard.press("Enter");
  assert.equal(await window.page.evaluate(() => document.activeElement.id), "main");
  // A page by the keyboard alone: its heading has the focus, its title is said.
  const link = window.page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Cluster" });
  await link.focus();
  await window.page.keyboard.press("Enter");
  await until("the heading has the focus", () => window.page.evaluate(() => document.activeElement.tagName === "H1" && document.activeElement.textContent === "Cluster"));
  assert.equal(await window.page.title(), "Cluster · Redfence");
  assert.equal(await link.getAttribute("aria-current"), "page");
  // Numbers that change leave the focus where it is.
  await window.go("#/overview");
  const summary = window.page.locator("summary").first();
  await summary.focus();
  await window.page.keyboard.press("Enter");
  const answer = window.page.waitForResponse((response) => response.url().endsWith("/overview"));
  await answer;
  await window.page.waitForResponse((response) => response.url().endsWith("/overview"));
  assert.equal(await window.page.evaluate(() => document.activeElement.tagName === "SUMMARY" && document.activeElement.parentNode.open), true);
}

/** Until the charts show more than the start. */
export async function past(window) {
  await window.go("#/overview");
  await until("charts with some past", () => window.page.evaluate(() => document.querySelectorAll(".chart table")[1].tBodies[0].rows.length >= 20), 400_000);
}

export async function screenshots(window, scheme, folder) {
  for (const [name, hash] of Object.entries(PAGES)) {
    await window.page.setViewportSize({ width: 1100, height: HEIGHTS[name] ?? 640 });
    await window.go(hash);
    if (name === "events") await until("some events", async () => ((await window.rows("Lock events, newest first")) ?? []).length > 15);
    await window.page.mouse.move(0, 0);
    await window.page.screenshot({ path: path.join(folder, `${name}-${scheme}.png`) });
  }
}
