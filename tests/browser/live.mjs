// What changes while one looks: events, actions and their rights, a leader that dies.

import assert from "node:assert/strict";
import fs from "node:fs";
import { OPS, VIEWER } from "./cluster.mjs";
import { until } from "./until.mjs";

const REFUSED = /status of 40[134]/;

export async function events(window, connection) {
  await window.go("#/events");
  await until("the feed is live", async () => (await window.text("#feed-state")).startsWith("Live"));
  const rows = async () => (await window.rows("Lock events, newest first")) ?? [];
  const [fence] = await connection.call("LOCK.ACQUIRE", "live:1", 60_000, "OWNER", "live-owner", "VALUE", "at-7");
  await connection.call("LOCK.RELEASE", "live:1", fence);
  await until("both events", async () => {
    const found = (await rows()).filter((row) => row.Name === "live:1");
    assert.deepEqual(found.map((row) => [row.Event, row.Owner, row.Fence]), [["released", "live-owner", String(fence)], ["acquired", "live-owner", String(fence)]]);
    return true;
  });
  // Paused: collected, not shown.
  await window.page.locator("#pause").click();
  await connection.call("LOCK.ACQUIRE", "live:2", 60_000, "OWNER", "while-paused");
  await until("it is counted", async () => /Paused.* [3-9] events/.test(await window.text("#feed-state")) || (await window.page.evaluate(() => document.querySelector("#pause").textContent)) === "Go on");
  assert.equal((await rows()).some((row) => row.Name === "live:2"), false);
  await window.page.locator("#pause").click();
  await until("shown afterwards", async () => (await rows()).some((row) => row.Name === "live:2"));
  // What is downloaded is what was seen, a line of JSON each.
  const [file] = await Promise.all([window.page.waitForEvent("download"), window.page.locator("#download").click()]);
  const lines = fs.readFileSync(await file.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(lines.slice(-3).map((line) => [line.event, line.resource]), [["acquired", "live:1"], ["released", "live:1"], ["acquired", "live:2"]]);
  // The filter is the node's: other names do not arrive.
  await window.page.fill("#match", "live:filtered*");
  await window.page.getByRole("button", { name: "Filter" }).click();
  await until("the feed is live again", async () => (await window.text("#feed-state")).startsWith("Live"));
  await connection.call("LOCK.FORCERELEASE", "live:2");
  await connection.call("LOCK.ACQUIRE", "live:filtered", 1, "OWNER", "short");
  await until("the lease that ran out", async () => (await rows()).some((row) => row.Name === "live:filtered" && row.Event === "expired"));
  assert.deepEqual([...new Set((await rows()).map((row) => row.Name))], ["live:filtered"]);
}

export async function logIn(window, login) {
  await window.go("#/login");
  await window.page.fill("#user", login.user);
  await window.page.fill("#password", login.password);
  await window.page.getByRole("button", { name: "Log in" }).click();
  await until("logged in", async () => (await window.text("#account")).includes(login.user));
}

/** A POST as a script of the page would send it, whatever its buttons offer. */
function post(window, path, body) {
  return window.page.evaluate(async ([where, what]) => (await fetch(`/api/v1/${where}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(what) })).status, [path, body]);
}

/** Who may not is offered nothing, and refused when asking all the same. */
export async function forbidden(window, connection, login, session) {
  if (login) await logIn(window, login);
  await window.go("#/lock/wallet%3A1");
  assert.equal(await window.page.getByRole("button", { name: /Force-release/ }).count(), 0);
  if (!login) assert.match(await window.text("#account"), /read-only/);
  await window.go("#/cluster");
  assert.equal(await window.page.getByRole("button", { name: /Make leader/ }).count(), 0);
  const before = await connection.map("LOCK.INFO", "wallet:1");
  const { leader } = await connection.map("LOCK.CLUSTER", "INFO");
  await window.allowing(REFUSED, async () => {
    assert.equal(await post(window, "locks/wallet%3A1/force-release", { reason: "not mine to take" }), 403);
    assert.equal(await post(window, "cluster/transfer", { to: (leader % 3) + 1, reason: "not mine to move" }), 403);
    assert.ok([403, 404].includes(await post(window, `sessions/${session}/close`, { reason: "not mine to end" })));
    await window.go("#/audit");
    assert.match(await window.text("main"), /may not see this/);
  });
  const after = await connection.map("LOCK.INFO", "wallet:1");
  assert.deepEqual([after.fence, after.state], [before.fence, "held"]);
  assert.equal((await connection.map("LOCK.CLUSTER", "INFO")).leader, leader);
  assert.equal((await connection.map("LOCK.SESSION", "INFO", session)).id, session);
}

export const viewer = (window, connection, session) => forbidden(window, connection, VIEWER, session);

/** Force-release by the dialog: by keyboard, with a reason, which is in the audit log. */
export async function forceRelease(window, connection, auditFile) {
  await logIn(window, OPS);
  await window.go("#/lock/wallet%3A2");
  const { fence } = await connection.map("LOCK.INFO", "wallet:2");
  const button = window.page.getByRole("button", { name: /Force-release/ });
  await button.focus();
  await window.page.keyboard.press("Enter");
  await window.page.locator("dialog[open]").waitFor();
  assert.equal(await window.page.evaluate(() => document.activeElement.id), "reason");
  assert.deepEqual(await window.axe(), []);
  // Escape leaves everything as it was, and gives the focus back.
  await window.page.keyboard.press("Escape");
  await window.page.locator("dialog").waitFor({ state: "detached" });
  assert.match(await window.page.evaluate(() => document.activeElement.textContent), /Force-release/);
  assert.equal((await connection.map("LOCK.INFO", "wallet:2")).fence, fence);
  // Without a reason nothing is sent.
  await window.page.keyboard.press("Enter");
  await window.page.locator("dialog[open]").waitFor();
  await window.page.keyboard.press("Enter");
  await until("the reason is asked for", async () => (await window.text("dialog")).includes("Give a reason"));
  assert.equal((await connection.map("LOCK.INFO", "wallet:2")).state, "held");
  await window.page.keyboard.type("holder <b>hangs</b>, ticket 4711");
  await window.page.keyboard.press("Enter");
  await window.page.locator("dialog").waitFor({ state: "detached" });
  assert.equal((await connection.map("LOCK.INFO", "wallet:2")).state, "free");
  await until("the page shows that it is free", async () => (await window.text("main")).includes("Nobody holds it"));
  await until("how it ended is shown", async () => ((await window.rows("Last fences and how they ended")) ?? []).some((row) => row.Fence === String(fence) && row.Ended === "taken by an operator"));
  await until("the reason is in the audit log", () => fs.readFileSync(auditFile, "utf8").includes("holder <b>hangs</b>, ticket 4711"));
}

export async function closeSession(window, connection, session) {
  await window.go("#/sessions");
  await window.page.getByRole("button", { name: `End… session ${session}` }).click();
  await window.page.fill("#reason", "stuck deploy");
  await window.page.getByRole("button", { name: "End session" }).click();
  await window.page.locator("dialog").waitFor({ state: "detached" });
  await until("it is gone", async () => !((await window.rows("Open sessions")) ?? []).some((row) => row.Session === session));
  await assert.rejects(connection.map("LOCK.SESSION", "INFO", session), /NOSESSION/);
}

export async function transfer(window, cluster, connection) {
  const leader = await cluster.leader();
  const target = cluster.nodes.find((node) => node.id !== leader.id);
  await window.go("#/cluster");
  await window.page.getByRole("button", { name: `Make leader… node ${target.id}` }).click();
  await window.page.fill("#reason", "kernel update of the old one");
  await window.page.getByRole("button", { name: "Transfer leadership" }).click();
  await window.page.locator("dialog").waitFor({ state: "detached" });
  await until("it leads", async () => (await connection.map("LOCK.CLUSTER", "INFO")).leader === target.id);
  await until("the page shows it", async () => (await window.rows("Members of the cluster")).find((row) => row.Role === "leader")?.Node.startsWith(String(target.id)));
}

/** The leader dies under load; whoever looks at another node sees the new one, and the feed goes on. */
export async function leaderDies(window, cluster, home, running) {
  let leader = await cluster.leader();
  if (leader.id === home.id) {
    const connection = await cluster.ops(home);
    await connection.call("LOCK.CLUSTER", "TRANSFER", (home.id % cluster.size) + 1);
    connection.close();
    leader = await until("another one leads", async () => {
      const now = await cluster.leader();
      return now.id !== home.id && now;
    });
  }
  await window.allowing(/status of 503/, async () => {
    await window.go("#/overview");
    await cluster.kill(leader);
    await until("the overview shows the dead node and the new leader", async () => {
      const rows = await window.rows("Nodes of the cluster");
      const dead = rows.find((row) => row.Node.startsWith(String(leader.id)));
      assert.equal(dead.State, "down");
      assert.ok(rows.some((row) => row.Role === "leader" && row.State === "up" && row !== dead));
      assert.match(await window.text("#health"), /2 of 3 nodes/);
      return true;
    });
    const before = running.grants();
    await until("locks are granted again", () => running.grants() > before + 20);
    await window.go("#/events?match=hot:*");
    await until("live events under load", async () => ((await window.rows("Lock events, newest first")) ?? []).some((row) => row.Name.startsWith("hot:") && row.Event === "acquired"));
    await window.go("#/contention");
    await until("the hot names are waited for", async () => ((await window.rows("Names by time waited")) ?? []).some((row) => row.Name.startsWith("hot:")));
    await window.page.getByLabel("prefix").check();
    await until("and their prefix", async () => ((await window.rows("Prefixes by time waited")) ?? []).some((row) => row.Prefix.startsWith("hot")));
  });
  return leader;
}
