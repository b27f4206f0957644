// Chromium, and what is watched in every page: console errors, violations of the content policy, requests that leave the node.

import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { until } from "./until.mjs";

// Installed under target/, not beside this file.
const require = createRequire(path.join(process.env.REDFENCE_BROWSER_MODULES, "package.json"));
const { chromium } = require("playwright-core");
const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export async function launch() {
  // Its profile is a new empty directory, removed at the end.
  return chromium.launch({ executablePath: process.env.CHROMIUM, headless: true, args: FLAGS });
}

export class Window {
  static async open(browser, origin, { scheme = "light", width = 1280, height = 800 } = {}) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true });
    const page = await context.newPage();
    return new Window(context, page, origin);
  }

  constructor(context, page, origin) {
    Object.assign(this, { context, page, origin, problems: [], allowed: null });
    page.setDefaultTimeout(60_000);
    page.on("console", (message) => {
      if (!["error", "warning"].includes(message.type())) return;
      if (this.allowed && this.allowed.test(message.text())) return;
      this.problems.push(`console: ${message.text()} at ${message.location().url}`);
    });
    page.on("pageerror", (error) => this.problems.push(`exception: ${error.message}`));
    page.on("dialog", (dialog) => {
      this.problems.push(`a script of a name ran: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on("request", (request) => {
      if (!request.url().startsWith(this.origin) && !request.url().startsWith("blob:")) this.problems.push(`left the node: ${request.url()}`);
    });
  }

  /** Goes to a page of the dashboard and waits until it has shown what the node answered. */
  async go(hash) {
    await this.page.goto(`${this.origin}/${hash}`);
    await this.settled();
  }

  async settled() {
    await until("the page has its data", () => this.page.evaluate(() => {
      const main = document.querySelector("main h1");
      return Boolean(main) && !document.querySelector("main").textContent.includes("Asking the node") && !document.querySelector("[aria-busy]");
    }));
  }

  /** Lets browser errors through that belong to what is tried: a refusal, a node that is killed. */
  async allowing(pattern, act) {
    this.allowed = pattern;
    try {
      return await act();
    } finally {
      this.allowed = null;
    }
  }

  text(selector) {
    return this.page.evaluate((wanted) => {
      const found = document.querySelector(wanted);
      return found ? found.textContent : null;
    }, selector);
  }

  /** The rows of a table by its caption: each an object of the column's title and the cell's text. */
  rows(caption) {
    return this.page.evaluate((wanted) => {
      const table = [...document.querySelectorAll("table")].find((one) => one.caption && one.caption.textContent === wanted);
      if (!table) return null;
      const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.replace(/ [▲▼]$/, ""));
      return [...table.tBodies[0].rows].map((row) => Object.fromEntries([...row.cells].map((cell, at) => [titles[at], cell.textContent])));
    }, caption);
  }

  /** The pairs of a panel by its heading. */
  pairs(heading) {
    return this.page.evaluate((wanted) => {
      const panel = [...document.querySelectorAll(".panel")].find((one) => one.getAttribute("aria-label") === wanted);
      return panel ? Object.fromEntries([...panel.querySelectorAll("dl.pairs > div")].map((pair) => [pair.querySelector("dt").textContent, pair.querySelector("dd").textContent])) : null;
    }, heading);
  }

  sideways() {
    return this.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  }

  /** What axe-core finds serious or critical. In a world of its own: the page's policy allows no script but its own. */
  async axe() {
    const session = await this.context.newCDPSession(this.page);
    try {
      const { frameTree } = await session.send("Page.getFrameTree");
      const { executionContextId } = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
      const evaluate = (expression) => session.send("Runtime.evaluate", { expression, contextId: executionContextId, awaitPromise: true, returnByValue: true });
      await evaluate(AXE);
      const { result, exceptionDetails } = await evaluate("axe.run().then((found) => JSON.stringify({ rules: found.passes.length, violations: found.violations }))");
      if (exceptionDetails) throw new Error(`axe-core failed: ${JSON.stringify(exceptionDetails)}`);
      const { rules, violations } = JSON.parse(result.value);
      if (rules < 10) throw new Error(`axe-core judged by ${rules} rules only`);
      return violations.filter((one) => one.impact === "serious" || one.impact === "critical").map((one) => `${one.id} (${one.impact}): ${one.nodes.map((node) => node.html.slice(0, 200)).join(" | ")}`);
    } finally {
      await session.detach();
    }
  }

  close() {
    return this.context.close();
  }
}
