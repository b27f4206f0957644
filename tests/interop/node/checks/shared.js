'use strict';
// The checks every library must pass, written once over a small adapter. ../../README.md tells what each of them demands.
//
// An adapter hides only how a library is called, never what it does:
//   name, version, variant        for the report
//   masters                       whether it talks to N masters; a release is then over when the last of them has heard of it
//   client(address)               opens connections of its own (N masters: to all of them, whatever the address)
//   acquire(client, name, ttlMs, waitMs)   what is held, or null
//   release(client, held)         whether the library says that it released
//   extend(client, held, ttlMs)   what is held from now on for ttlMs, or null

const {
  NODES, ReplyError, Report, chance, control, expect, freshName, heldFence, isFree, lockInfo, now, raw, rawAt, sleep, until, within,
} = require('./frame');

async function runShared(library) {
  const report = new Report(library.name, library.version, library.variant);
  const checks = {
    acquire, contention, expiry, stranger, extend, waiting, 'lock.acquire': lockAcquire, exclusion,
    'leader killed: holding': killedHolding, 'leader killed: waiting': killedWaiting, 'leader killed: working': killedWorking,
  };
  for (const [name, check] of Object.entries(checks)) await report.run(name, () => check(library));
  return report;
}

/**
 * Free after the release: at once, or with N masters as soon as the last one has heard of it; what a dead one has granted ends with its
 * ttl (of which a new leader may count a part twice).
 */
async function expectFree(library, name, deadMaster = false) {
  if (library.masters) await until(() => isFree(name), deadMaster ? 15 : 3, 'still held after the release');
  expect(await isFree(name), `held after the release: ${JSON.stringify(await lockInfo(name))}`);
}

async function take(library, client, name, ttlMs) {
  const held = await library.acquire(client, name, ttlMs, 0);
  expect(held, 'a free lock was refused');
  return held;
}

async function giveBack(library, client, held) {
  expect(await library.release(client, held), "the holder's release was refused");
}

async function acquire(library) {
  const name = freshName('acquire');
  const client = await library.client(NODES[0]);
  const held = await take(library, client, name, 20000);
  await heldFence(name);
  await giveBack(library, client, held);
  await expectFree(library, name);
}

async function contention(library) {
  const name = freshName('contention');
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];
  let held = await take(library, first, name, 20000);
  const fence = await heldFence(name);
  expect(!(await library.acquire(second, name, 20000, 0)), 'granted twice');
  expect((await heldFence(name)) === fence, 'the refused attempt changed the fence');
  await giveBack(library, first, held);
  await expectFree(library, name);
  held = await take(library, second, name, 20000);
  expect((await heldFence(name)) > fence, 'the second grant has no higher fence');
  await giveBack(library, second, held);
}

async function expiry(library) {
  const ttlMs = 600;
  const name = freshName('expiry');
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];
  const asked = now();
  await take(library, first, name, ttlMs);
  const fence = await heldFence(name);
  while (!(await library.acquire(second, name, 20000, 0))) {
    expect(now() < asked + 5000, `still held 5 s after a ttl of ${ttlMs} ms`);
    await sleep(20);
  }
  const livedMs = Math.round(now() - asked);
  expect(livedMs >= ttlMs, `another client got it after ${livedMs} of ${ttlMs} ms`);
  expect((await heldFence(name)) > fence, 'the grant after the expiry has no higher fence');
  return `lived ${livedMs} of ${ttlMs} ms`;
}

/** A holder whose lock expired and went to somebody else must not be able to release it. */
async function stranger(library) {
  const name = freshName('stranger');
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];
  const late = await take(library, first, name, 300);
  await until(() => isFree(name), 5, 'the first lock did not expire');
  const held = await take(library, second, name, 20000);
  const fence = await heldFence(name);
  const said = await library.release(first, late);
  expect((await heldFence(name)) === fence, 'the late release took the lock from its holder');
  expect(!said, 'the late release was reported as done');
  await giveBack(library, second, held);
}

async function extend(library) {
  const name = freshName('extend');
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];
  let held = await take(library, first, name, 700);
  const fence = await heldFence(name);
  held = await library.extend(first, held, 20000);
  expect(held, "the holder's extension was refused");
  const left = (await lockInfo(name)).ttl;
  expect(left > 19000 && left <= 20000, `ttl after the extension is ${left} ms`);
  await sleep(900);
  expect(!(await library.acquire(second, name, 20000, 0)), 'granted to another after the first ttl');
  expect((await heldFence(name)) === fence, 'the extension changed the fence');
  await giveBack(library, first, held);
}

async function waiting(library) {
  const name = freshName('waiting');
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];
  const held = await take(library, first, name, 20000);
  let over = false;
  const waiter = library.acquire(second, name, 20000, 15000).finally(() => { over = true; });
  await sleep(400);
  expect(!over, 'did not wait');
  await giveBack(library, first, held);
  const released = now();
  const got = await within(waiter, 20, 'the waiter did not return');
  const afterMs = Math.round(now() - released);
  expect(got, 'was not granted after the release');
  await giveBack(library, second, got);
  return `granted ${afterMs} ms after the release`;
}

/** LOCK.* and the library on one name. */
async function lockAcquire(library) {
  const name = freshName('mixed');
  const client = await library.client(NODES[0]);
  const [before] = await raw('LOCK.ACQUIRE', name, 20000);
  expect(!(await library.acquire(client, name, 20000, 0)), 'granted while LOCK.ACQUIRE holds');
  expect((await raw('LOCK.RELEASE', name, before))[0] === 1, 'LOCK.RELEASE was refused');
  const held = await take(library, client, name, 20000);
  const fence = await heldFence(name);
  expect(fence > before, "the library's grant has no higher fence");
  expect((await raw('LOCK.ACQUIRE', name, 20000)) === null, 'LOCK.ACQUIRE granted while the library holds');
  const waiter = rawAt(NODES[2], 'LOCK.ACQUIRE', name, 20000, 'WAIT', 10000);
  await until(async () => (await lockInfo(name)).waiters === 1, 5, 'LOCK.ACQUIRE … WAIT is not in the queue');
  await giveBack(library, client, held);
  const granted = await waiter;
  expect(granted && granted[0] > fence, `LOCK.ACQUIRE … WAIT was answered with ${granted}`);
  expect((await raw('LOCK.RELEASE', name, granted[0]))[0] === 1, 'the second LOCK.RELEASE was refused');
}

/** Who surely held when, under which fence; and a counter that only the lock protects. */
class Ledger {
  constructor() {
    this.grants = []; // { from, until, fence, address }
    this.counter = 0;
    this.writes = 0;
    this.broken = 0;
  }

  count(address) {
    return this.grants.filter((grant) => !address || grant.address === address).length;
  }

  judge() {
    const grants = [...this.grants].sort((a, b) => a.from - b.from);
    grants.slice(1).forEach((after, i) => {
      expect(after.from >= grants[i].until, `two holders at once: ${JSON.stringify(grants[i])} and ${JSON.stringify(after)}`);
    });
    const fences = grants.map((grant) => grant.fence).filter(Boolean);
    expect(fences.length >= Math.floor(grants.length / 2), `only ${fences.length} of ${grants.length} fences could be read`);
    expect(fences.every((fence, i) => i === 0 || fences[i - 1] < fence), `fences do not rise strictly: ${fences}`);
    expect(this.counter === this.writes, `${this.writes - this.counter} of ${this.writes} updates were lost`);
    return `${grants.length} grants, ${this.broken} broken calls`;
  }
}

/** One worker: takes the lock, changes the counter, gives the lock back; goes on whatever breaks. */
async function work(library, name, address, ttlMs, ledger, stop) {
  let client = null;
  while (!stop.now) {
    const asked = now();
    let held;
    try {
      client = client || (await library.client(address));
      held = await library.acquire(client, name, ttlMs, 0);
    } catch (error) {
      ledger.broken++;
      await sleep(50);
      continue;
    }
    if (!held) {
      await sleep(5 + chance() * 25);
      continue;
    }
    const [from, lapses, value] = [now(), asked + ttlMs, ledger.counter];
    const fence = await readableFence(name, lapses);
    await sleep(2);
    if (now() < lapses - 100) {
      ledger.counter = value + 1;
      ledger.writes++;
    }
    ledger.grants.push({ from, until: Math.min(now(), lapses), fence, address });
    await library.release(client, held).catch(() => ledger.broken++);
    await sleep(5 + chance() * 25);
  }
}

/** The fence of a grant while it surely lasts; null where nobody could be asked in time. */
async function readableFence(name, lapses) {
  try {
    const { fence } = await lockInfo(name);
    return now() < lapses ? fence : null;
  } catch (error) {
    if (error instanceof ReplyError && !/^(UNAVAILABLE|INDETERMINATE) /.test(error.message)) throw error;
    return null;
  }
}

/** Workers at these addresses while `during(ledger)` runs; then the verdict. */
async function crew(library, name, addresses, ttlMs, during) {
  const [ledger, stop] = [new Ledger(), { now: false }];
  const workers = Promise.all(addresses.map((address) => work(library, name, address, ttlMs, ledger, stop)));
  const failed = workers.then(() => new Promise(() => {})); // only ever ends with a worker's error
  try {
    await Promise.race([during(ledger), failed]);
  } finally {
    stop.now = true;
  }
  await within(workers, 20, 'the workers did not stop');
  return ledger.judge();
}

function exclusion(library) {
  return crew(library, freshName('exclusion'), [...NODES, NODES[0]], 5000, (ledger) =>
    until(() => ledger.count() >= 25, 25, '25 grants did not come'));
}

function killedWorking(library) {
  return crew(library, freshName('working'), NODES, 1000, async (ledger) => {
    await until(() => ledger.count() >= 6, 20, 'the first 6 grants did not come');
    const [dead] = await control('kill-leader');
    let before = ledger.count();
    try {
      await until(() => ledger.count() >= before + 6, 25, '6 grants under the next leader did not come');
    } finally {
      await control('restart-dead');
    }
    before = ledger.count();
    const beforeDead = ledger.count(dead);
    await until(() => ledger.count() >= before + 6, 20, '6 grants after the restart did not come');
    await until(() => ledger.count(dead) > beforeDead, 20, 'the worker of the restarted node got no lock');
  });
}

/** The ttl of a lock that is held when the leader dies. Short with N masters: the dead one cannot hear of the release. */
const heldOverDeathMs = (library) => (library.masters ? 5000 : 20000);

/** A release soon after the leader's death may break with it, its outcome unknown: then it is made again, as the contract says. */
async function releaseAfterDeath(library, client, held, fence, name) {
  expect((await heldFence(name)) === fence, 'the fence changed with the leader');
  for (let i = 0; i < 5; i++) {
    if (await library.release(client, held).catch(() => false)) return;
    const info = await lockInfo(name);
    if (info.fence !== fence || info.state === 'free') return; // it had come through after all
    await sleep(100);
  }
  expect(false, "the holder's release was refused after the leader died");
}

async function killedHolding(library) {
  const name = freshName('holding');
  const [here, there] = await control('followers');
  const [first, second] = [await library.client(here), await library.client(there)];
  let held = await take(library, first, name, heldOverDeathMs(library));
  const fence = await heldFence(name);
  await control('kill-leader');
  try {
    expect(!(await library.acquire(second, name, 20000, 0)), 'granted to another after the leader died');
    expect((await heldFence(name)) === fence, 'the fence changed with the leader');
    held = await library.extend(first, held, heldOverDeathMs(library) + 1000);
    expect(held, "the holder's extension was refused after the leader died");
    expect((await heldFence(name)) === fence, 'the extension changed the fence');
    await giveBack(library, first, held);
    await expectFree(library, name, true);
  } finally {
    await control('restart-dead');
  }
}

async function killedWaiting(library) {
  const name = freshName('killed-waiting');
  const [here, there] = await control('followers');
  const [first, second] = [await library.client(here), await library.client(there)];
  const held = await take(library, first, name, heldOverDeathMs(library));
  const fence = await heldFence(name);
  let broken = 0;
  // As an application would: an attempt that broke with the leader is made again.
  const wait = () => library.acquire(second, name, 20000, 15000).catch((error) => {
    if (++broken >= 5) throw error;
    return wait();
  });
  const waiter = wait();
  await sleep(300);
  await control('kill-leader');
  try {
    await releaseAfterDeath(library, first, held, fence, name);
    const got = await within(waiter, 25, 'the waiter did not return');
    expect(got, 'was not granted after the release');
    expect((await heldFence(name)) > fence, "the waiter's grant has no higher fence");
    await giveBack(library, second, got);
  } finally {
    await control('restart-dead');
  }
  return `${broken} broken calls`;
}

module.exports = { expectFree, runShared };
