'use strict';
// node-redlock 5: `redlock5.js <ioredis package> single|masters`

const { default: Redlock, ExecutionError, ResourceLockedError } = require('redlock5');
const { open, versionOf } = require('./clients');
const { NODES, REDLOCK, expect, freshName, heldFence, main, rejects, sleep } = require('./frame');
const { expectFree, runShared } = require('./shared');

const ONCE = { retryCount: 0 };

class Redlock5 {
  constructor(client, masters) {
    this.package = client;
    this.masters = masters;
    this.name = 'redlock';
    this.version = versionOf('redlock5');
    this.variant = `ioredis ${versionOf(client).split('.')[0]}, ${masters ? 'three masters' : 'one address'}`;
  }

  async client(address) {
    const clients = await Promise.all((this.masters ? REDLOCK : [address]).map((one) => open(this.package, one)));
    const redlock = new Redlock(clients);
    redlock.on('error', () => {});
    return redlock;
  }

  async acquire(redlock, name, ttlMs, waitMs) {
    const patience = waitMs ? { retryCount: Math.ceil(waitMs / 100), retryDelay: 100, retryJitter: 20 } : ONCE;
    return redlock.acquire([name], ttlMs, patience).catch(orNull);
  }

  async release(redlock, lock) {
    return redlock.release(lock, ONCE).then(() => true, (error) => orNull(error) !== null);
  }

  async extend(redlock, lock, ttlMs) {
    return redlock.extend(lock, ttlMs, ONCE);
  }
}

/** What the library says when it had no majority: refused. Everything else is an error. */
function orNull(error) {
  if (error instanceof ExecutionError) return null;
  throw error;
}

main(async () => {
  const library = new Redlock5(process.argv[2], process.argv[3] === 'masters');
  const report = await runShared(library);
  const [first, second] = [await library.client(NODES[0]), await library.client(NODES[1])];

  await report.run('several resources at once', async () => {
    const names = [freshName('multi'), freshName('multi')];
    const lock = await first.acquire(names, 20000, ONCE);
    for (const name of names) await heldFence(name);
    expect((await library.acquire(second, names[1], 20000, 0)) === null, 'one of the two was granted to another');
    await lock.release();
    for (const name of names) await expectFree(library, name);
    const one = await library.acquire(second, names[1], 20000, 0);
    await rejects(first.acquire(names, 20000, ONCE), 'both granted although one was held');
    await expectFree(library, names[0]);
    await library.release(second, one);
  });
  await report.run('using() extends by itself', async () => {
    const names = [freshName('using'), freshName('using')];
    const told = await first.using(names, 900, { ...ONCE, automaticExtensionThreshold: 400 }, async (signal) => {
      const fence = await heldFence(names[0]);
      await sleep(1500);
      expect(!signal.aborted, `aborted: ${signal.error}`);
      expect((await heldFence(names[0])) === fence, 'the fence changed');
      expect((await library.acquire(second, names[1], 20000, 0)) === null, 'granted to another after the first ttl');
      return 'done';
    });
    expect(told === 'done', `using() returned ${told}`);
    for (const name of names) await expectFree(library, name);
  });
  await report.run('ResourceLockedError among the votes', async () => {
    const name = freshName('votes');
    const lock = await first.acquire([name], 20000, ONCE);
    const error = await rejects(second.acquire([name], 20000, ONCE), 'granted twice');
    const { votesAgainst } = await error.attempts[0];
    expect([...votesAgainst.values()].every((vote) => vote instanceof ResourceLockedError), `votes: ${[...votesAgainst.values()]}`);
    await lock.release();
  });
});
