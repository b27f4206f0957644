// Every page against what LOCK.* answers at the same node. The cluster is quiet meanwhile: numbers stand still.

import assert from "node:assert/strict";
import fs from "node:fs";
import { HOSTILE, keyOf, shown } from "./load.mjs";
import { toMap } from "./resp.mjs";
import { until } from "./until.mjs";

const number = (text) => Number(text.replaceAll(",", ""));

/** Sums over all held locks, from LOCK.SCAN and LOCK.INFO. */
async function totals(connection) {
  const names = new Map();
  let cursor = "0";
  do {
    const [next, found] = await connection.raw("LOCK.SCAN", cursor, "COUNT", 1000);
    for (const name of found) names.set(name.toString("latin1"), name);
    cursor = next.toString();
  } while (cursor !== "0");
  const held = { exclusive: 0, shared: 0, permits: 0 };
  let waiters = 0;
  for (const name of names.values()) {
    const info = await connection.map("LOCK.INFO", name);
    held[info.mode] += info.holders.length;
    waiters += info.waiters;
  }
  return { names: [...names.values()], held, waiters };
}

export async function overview(window, connection) {
  await window.go("#/overview");
  const { held, waiters } = await totals(connection);
  await until("the overview shows the numbers of LOCK.INFO", async () => {
    const all = held.exclusive + held.shared + held.permits;
    assert.equal(number(await window.text("#tile-held .big")), all);
    assert.equal(await window.text("#tile-held .muted"), `${held.exclusive} exclusive · ${held.shared} shared · ${held.permits} permits`);
    assert.equal(number(await window.text("#tile-waiters .big")), waiters);
    assert.equal(number(await window.text("#tile-sessions .big")), 3);
    return true;
  });
  const nodes = (await connection.call("LOCK.CLUSTER", "NODES")).map(toMap);
  const rows = await window.rows("Nodes of the cluster");
  assert.deepEqual(rows.map((row) => [row.Node.replace(" (this)", ""), row.Address, row.Role, row.State]), nodes.map((node) => [String(node.id), node.addr, node.role, node.up ? "up" : "down"]));
  assert.match(await window.text("#health"), /Healthy/);
  await until("a point of the last 15 minutes is drawn", () => window.page.evaluate(() => document.querySelectorAll(".chart .line").length >= 3));
}

export async function locks(window, connection) {
  await window.go("#/locks?match=wallet:*");
  const rows = await window.rows("Held locks");
  assert.equal(rows.length, 25);
  for (const row of rows) {
    const info = await connection.map("LOCK.INFO", row.Name);
    assert.deepEqual([row.Owner, row.Fence, row.Waiters, row.Mode, row.Tier.toUpperCase()], [info.owner, String(info.fence), String(info.waiters), info.mode, info.tier]);
  }
  // All of them, page by page.
  const { names } = await totals(connection);
  await window.go("#/locks?count=50");
  const seen = new Set();
  for (;;) {
    for (const row of (await window.rows("Held locks")) ?? []) seen.add(row.Name);
    if (await window.page.locator("#next").isDisabled()) break;
    const before = JSON.stringify(await window.rows("Held locks"));
    await window.page.locator("#next").click();
    await window.settled();
    await until("the next page", async () => JSON.stringify(await window.rows("Held locks")) !== before);
  }
  assert.deepEqual([...seen].sort(), names.map(shown).sort());
  // By waiters, the longest queue first.
  await window.go("#/locks");
  await window.page.getByRole("button", { name: "Waiters" }).click();
  await until("the longest queue is first", async () => (await window.rows("Held locks"))[0].Name === "chain:a");
  assert.equal(await window.page.evaluate(() => document.querySelector("[aria-sort]").textContent.startsWith("Waiters")), true);
  // Nothing found says what to do.
  await window.page.fill("#match", "no-such-name-*");
  await window.page.getByRole("button", { name: "Search" }).click();
  await until("the empty state", async () => (await window.text("#result")).includes("No held lock matches. Try *"));
}

export async function lock(window, connection) {
  await window.go("#/lock/chain%3Aa");
  const info = await connection.map("LOCK.INFO", "chain:a");
  const explain = await connection.map("LOCK.EXPLAIN", "chain:a");
  assert.equal(await window.text("h1"), "chain:a");
  const [holder] = await window.rows("Holders");
  assert.deepEqual([holder.Owner, holder.Fence, holder.Session, holder["Time left"]], [info.owner, String(info.fence), info.session, "with its session"]);
  const queue = explain.queue.map(toMap);
  const rows = await window.rows("Queue, first in line first");
  assert.deepEqual(rows.map((row) => [row.Place, row.Owner, row.Mode]), queue.map((one) => [String(one.position), one.owner, one.mode]));
  assert.equal(rows.length, 3);
  for (const row of rows) assert.match(row.Estimate, /^(≈ |any moment)/);
  // The picture and its text: checkout holds chain:a and waits for chain:b of billing, who waits for chain:c of deploy.
  const drawn = await window.page.evaluate(() => [...document.querySelectorAll(".chain .box-text")].map((text) => text.textContent));
  assert.deepEqual(drawn, ["3 waiters", "chain:a", "checkout-1", "chain:b", "billing-1", "chain:c", "deploy-1"]);
  const text = await window.page.evaluate(() => [...document.querySelectorAll(".chain-text li")].map((item) => item.textContent));
  assert.equal(text.length, 5);
  assert.match(text[1], /^waits for chain:b/);
  // How its last grants ended.
  const past = await window.rows("Last fences and how they ended");
  assert.ok(past.length >= 1 && past.every((row) => row.Ended === "released"), JSON.stringify(past));

  await window.go("#/lock/pool%3Agpu");
  const pool = await connection.map("LOCK.INFO", "pool:gpu");
  const holders = await window.rows("Holders");
  assert.deepEqual(holders.map((row) => [row.Owner, row.Fence, row.Permits, row.Value]), pool.holders.map(toMap).map((one) => [one.owner, String(one.fence), String(one.permits), one.value]));

  await window.go("#/lock/never-taken");
  assert.match(await window.text("main"), /Nobody holds it/);
}

export async function sessions(window, connection, opened) {
  await window.go("#/sessions");
  const rows = await window.rows("Open sessions");
  assert.equal(rows.length, opened.length);
  for (const { id, label } of opened) {
    const info = await connection.map("LOCK.SESSION", "INFO", id);
    const row = rows.find((one) => one.Session === id);
    assert.ok(row, `session ${id} is listed`);
    assert.deepEqual([row.Label, row.Locks, row.Policy], [label, String(info.locks), info.policy]);
  }
  assert.equal(rows.find((row) => row.Label === "checkout")["Waits for"], "chain:b");
}

export async function cluster(window, connection) {
  await window.go("#/cluster");
  const info = await connection.map("LOCK.CLUSTER", "INFO");
  const version = await connection.map("LOCK.CLUSTER", "VERSION");
  const own = await window.pairs("This node");
  assert.deepEqual([own.id, own.role, own.leader, own.term, own.voters], [info.id, info.role, info.leader, info.term, info.voters].map(String));
  const versions = await window.pairs("Version");
  assert.deepEqual([versions["cluster version"], versions["node version"]], [version.cluster_version, version.node_version].map(String));
  const settings = await window.pairs("Settings");
  assert.equal(settings["default tier"].toUpperCase(), (await connection.call("LOCK.CLUSTER", "GET", "default-tier")).toUpperCase());
  const rows = await window.rows("Members of the cluster");
  const nodes = (await connection.call("LOCK.CLUSTER", "NODES")).map(toMap);
  assert.deepEqual(rows.map((row) => [row.Node.replace(" (this)", ""), row.Role]), nodes.map((node) => [String(node.id), node.role]));
}

export async function routes(window) {
  await window.go("#/routes");
  await window.page.fill("#name", "wallet:7");
  await window.page.getByRole("button", { name: "Which tier?" }).click();
  await until("the answer", async () => /wallet:7 goes to correctness.*wallet:\*/.test(await window.text("#answer")));
  assert.deepEqual(await window.rows("Routes in force"), [{ Order: "1", Pattern: "wallet:*", Tier: "correctness" }]);
}

/** As a user who may: the lines of the file, newest first. */
export async function audit(window, file) {
  await window.go("#/audit");
  await until("the page shows the newest lines of the file", async () => {
    const lines = fs.readFileSync(file, "utf8").trim().split("\n").map((line) => JSON.parse(line)).reverse();
    await window.page.getByRole("button", { name: "Refresh" }).click();
    await window.settled();
    const rows = await window.rows("Audit log");
    assert.ok(rows.length > 0);
    assert.deepEqual(rows.slice(0, 5).map((row) => [row.Event, row.User, row.From, row.Result]), lines.slice(0, 5).map((line) => [line.event, line.user, line.client, line.result]));
    return true;
  });
}

/** Names are text, whatever bytes they are: in the list, on their own page, in events. */
export async function hostile(window, connection) {
  await window.go("#/locks?count=500");
  const rows = await window.rows("Held locks");
  for (const [index, name] of HOSTILE.entries()) {
    const row = rows.find((one) => one.Name === shown(name));
    assert.ok(row, `listed as text: ${shown(name)}`);
    assert.equal(row.Owner, `<i>hostile-${index}</i>`);
  }
  for (const [index, name] of HOSTILE.entries()) {
    await window.go("#/locks?count=500");
    const link = window.page.locator(`a.lock-link[href="#/lock/${keyOf(name)}?tier=correctness"]`);
    await link.click();
    await until(`the page of ${shown(name)}`, async () => {
      assert.equal(await window.text("h1"), shown(name));
      assert.equal((await window.rows("Holders"))[0].Owner, `<i>hostile-${index}</i>`);
      return true;
    });
    assert.equal((await window.rows("Holders"))[0].Fence, String((await connection.map("LOCK.INFO", name)).fence));
    assert.equal(await window.page.evaluate(() => document.querySelectorAll("main script, main img, main b, main i, main iframe, main [onerror], main [onmouseover]").length), 0);
    assert.equal(await window.sideways(), 0);
    // Its renewal is seen here, live, and under no other name.
    await until("the live feed is on", async () => (await window.text("main")).includes("Events of this name appear here"));
    const { fence } = await connection.map("LOCK.INFO", name);
    await connection.call("LOCK.RENEW", name, fence, 600_000);
    await until(`a live event of ${shown(name)}`, async () => ((await window.rows("Live events of this lock")) ?? []).some((row) => row.Event === "renewed" && row.Fence === String(fence)));
  }
}
