// The dashboard in a real browser, before a real cluster. `scripts/browser` sets it up and starts it.
//   node run.mjs short   every page, its numbers, hostile names, axe-core
//   node run.mjs full    and the live feed, rights, actions, a killed leader, dark, narrow, the keyboard, a node that asks for a login

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { launch, Window } from "./browser.mjs";
import { Cluster, OPS } from "./cluster.mjs";
import * as live from "./live.mjs";
import { fixture, load } from "./load.mjs";
import * as looks from "./looks.mjs";
import * as pages from "./pages.mjs";
import { until } from "./until.mjs";

const part = process.argv[2];
const binary = process.env.REDFENCE_BIN;
const folder = process.env.REDFENCE_BROWSER_OUT;
const only = process.env.ONLY;
const failures = [];
let windows = [];

async function step(name, act) {
  if (only && !name.includes(only)) return;
  const start = Date.now();
  try {
    await act();
    for (const window of windows) {
      const problems = window.problems.splice(0);
      assert.deepEqual(problems, [], "the browser's console is clean");
    }
    console.log(`ok    ${name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures.push(name);
    console.log(`FAILED ${name}\n${error.stack}`);
    for (const [index, window] of windows.entries()) {
      window.problems.length = 0;
      await window.page.screenshot({ path: path.join(folder, `failed-${failures.length}-${index}.png`), fullPage: true }).catch(() => null);
    }
  }
}

async function withWindow(browser, origin, options, act) {
  const window = await Window.open(browser, origin, options);
  windows.push(window);
  try {
    return await act(window);
  } finally {
    windows = windows.filter((one) => one !== window);
    await window.close();
  }
}

async function quiet(browser, cluster, home, held, connection) {
  const origin = `http://127.0.0.1:${home.admin}`;
  await withWindow(browser, origin, {}, async (window) => {
    await live.logIn(window, OPS);
    await step("overview shows the cluster's numbers", () => pages.overview(window, connection));
    await step("locks: search, pages, order", () => pages.locks(window, connection));
    await step("a lock: holders, queue, chain, past", () => pages.lock(window, connection));
    await step("sessions of everybody, for who may", () => pages.sessions(window, connection, held.sessions));
    await step("cluster shows LOCK.CLUSTER", () => pages.cluster(window, connection));
    await step("routes: which tier, and why", () => pages.routes(window));
    await step("hostile names are text", () => pages.hostile(window, connection));
    await step("axe-core finds nothing serious, in light", () => looks.axe(window));
    if (part === "full") await step("events: live, paused, downloaded, filtered", () => live.events(window, connection));
  });
  if (part === "short") return;
  await withWindow(browser, origin, {}, async (window) => {
    await step("keyboard", () => looks.keyboard(window));
    await step("without a login nobody acts", () => live.forbidden(window, connection, null, held.sessions[2].id));
    await step("a viewer only looks", () => live.viewer(window, connection, held.sessions[2].id));
  });
  await withWindow(browser, origin, { scheme: "dark" }, async (window) => {
    await step("force-release by keyboard, with a reason", () => live.forceRelease(window, connection, cluster.auditLog(home)));
    await step("audit shows the file's lines", () => pages.audit(window, cluster.auditLog(home)));
    await step("axe-core finds nothing serious, in dark", () => looks.axe(window));
    await step("leadership is transferred", () => live.transfer(window, cluster, connection));
    await step("nothing scrolls sideways at 360 px and at 200 %", () => looks.narrow(window));
  });
}

async function underLoad(browser, cluster, home, held, connection) {
  const origin = `http://127.0.0.1:${home.admin}`;
  const running = load(() => cluster.nodes, OPS);
  try {
    for (const scheme of ["light", "dark"]) {
      await withWindow(browser, origin, { scheme, width: 1100, height: 640 }, async (window) => {
        await live.logIn(window, OPS);
        if (process.env.UPDATE === "1") await looks.past(window);
        await step(`pictures, ${scheme}`, () => looks.screenshots(window, scheme, folder));
      });
    }
    await withWindow(browser, origin, {}, async (window) => {
      let dead = null;
      await step("the leader dies under load", async () => {
        dead = await live.leaderDies(window, cluster, home, running);
      });
      await step("the dead node comes back", async () => {
        if (dead) cluster.restart(dead);
        await window.allowing(/status of 503/, () => window.go("#/overview"));
        await until("all are up", async () => (await window.rows("Nodes of the cluster")).every((row) => row.State === "up"));
        await until("the line says so", async () => (await window.text("#health")).includes("Healthy"));
      });
      await live.logIn(window, OPS);
      await step("a session is ended", () => live.closeSession(window, connection, held.sessions[2].id));
    });
  } finally {
    await running.stop();
  }
}

/** A node that lets nobody in without a password. */
async function login(browser) {
  const cluster = await Cluster.start({ binary, folder: path.join(folder, "closed"), size: 1, closed: true });
  try {
    await withWindow(browser, `http://127.0.0.1:${cluster.nodes[0].admin}`, {}, async (window) => {
      await step("a node that asks for a login", async () => {
        await window.go("#/locks?match=a*");
        assert.equal(await window.text("h1"), "Log in");
        assert.deepEqual(await window.axe(), []);
        await window.allowing(/status of (401|429)/, async () => {
          await window.page.fill("#user", OPS.user);
          await window.page.fill("#password", "wrong");
          await window.page.getByRole("button", { name: "Log in" }).click();
          await until("the refusal", async () => (await window.text("main")).includes("user or password"));
        });
        await window.page.fill("#password", OPS.password);
        await window.page.getByRole("button", { name: "Log in" }).click();
        await until("the page that was asked for", async () => (await window.text("h1")) === "Locks" && (await window.text("main")).includes("No held lock matches"));
        // Nothing of the login can be read by a script.
        assert.equal(await window.page.evaluate(() => document.cookie + localStorage.length + sessionStorage.length), "00");
        await window.page.getByRole("button", { name: "Log out" }).click();
        await until("logged out", async () => (await window.text("h1")) === "Log in");
      });
    });
  } finally {
    cluster.stop();
  }
}

const cluster = await Cluster.start({ binary, folder: path.join(folder, "open"), size: 3, closed: false });
let browser = null;
try {
  browser = await launch();
  const leader = await cluster.leader();
  // Looked at by way of a follower: what it shows has come over the log.
  const home = cluster.nodes.find((node) => node.id !== leader.id);
  const held = await fixture(home.port, OPS);
  const connection = await cluster.ops(home);
  await quiet(browser, cluster, home, held, connection);
  if (part === "full") {
    await underLoad(browser, cluster, home, held, connection);
    await login(browser);
  }
  connection.close();
  held.close();
} finally {
  if (browser) await browser.close();
  cluster.stop();
}
if (failures.length) {
  console.log(`${failures.length} failed: ${failures.join("; ")}\nlogs of the nodes and pictures of the failures: ${folder}`);
  process.exit(1);
}
console.log(`browser tests, ${part}: all green${fs.existsSync(path.join(folder, "overview-light.png")) ? `; pictures in ${folder}` : ""}`);
process.exit(0);
