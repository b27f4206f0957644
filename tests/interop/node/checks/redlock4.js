'use strict';
// node-redlock 4: `redlock4.js <ioredis package> single|masters`

const Redlock = require('redlock4');
const { open, versionOf } = require('./clients');
const { NODES, REDLOCK, expect, freshName, heldFence, main, rejects, sleep } = require('./frame');
const { expectFree, runShared } = require('./shared');

class Redlock4 {
  constructor(client, masters) {
    this.package = client;
    this.masters = masters;
    this.name = 'redlock';
    this.version = versionOf('redlock4');
    this.variant = masters ? 'three masters' : 'one address';
  }

  async client(address) {
    const clients = await Promise.all((this.masters ? REDLOCK : [address]).map((one) => open(this.package, one)));
    const redlock = new Redlock(clients, { retryCount: 0 });
    redlock.on('clientError', () => {});
    return { clients, redlock };
  }

  async acquire({ clients, redlock }, name, ttlMs, waitMs) {
    const patient = waitMs ? new Redlock(clients, { retryCount: Math.ceil(waitMs / 100), retryDelay: 100, retryJitter: 20 }) : redlock;
    if (waitMs) patient.on('clientError', () => {});
    return patient.lock(name, ttlMs).catch(orNull);
  }

  async release({ redlock }, lock) {
    return redlock.unlock(lock).then(() => true, (error) => orNull(error) !== null);
  }

  async extend({ redlock }, lock, ttlMs) {
    return redlock.extend(lock, ttlMs);
  }
}

/** What the library says when it had no majority: refused. Everything else is an error. */
function orNull(error) {
  if (error.name === 'LockError') return null;
  throw error;
}

main(async () => {
  const library = new Redlock4(process.argv[2], process.argv[3] === 'masters');
  const report = await runShared(library);
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];

  await report.run('several resources at once', async () => {
    const names = [freshName('multi'), freshName('multi')];
    const lock = await first.redlock.lock(names, 20000);
    for (const name of names) await heldFence(name);
    expect((await library.acquire(second, names[1], 20000, 0)) === null, 'one of the two was granted to another');
    await first.redlock.unlock(lock);
    for (const name of names) await expectFree(library, name);
    const one = await library.acquire(second, names[1], 20000, 0);
    expect((await rejects(first.redlock.lock(names, 20000), 'both granted although one was held')).name === 'LockError', 'no LockError');
    await expectFree(library, names[0]);
    await library.release(second, one);
  });
  await report.run('extend after the end is refused', async () => {
    const name = freshName('late');
    const lock = await first.redlock.lock(name, 200);
    await sleep(300);
    expect((await rejects(lock.extend(1000), 'a late extension was granted')).name === 'LockError', 'no LockError');
  });
});
