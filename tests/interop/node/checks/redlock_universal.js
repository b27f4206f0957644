'use strict';
// redlock-universal: `redlock_universal.js <client package> single|masters`

const {
  IoredisAdapter, LockAcquisitionError, LockManager, NodeRedisAdapter, createLock, createRedlock,
} = require('redlock-universal');
const { isIoredis, open, versionOf } = require('./clients');
const { NODES, REDLOCK, expect, freshName, heldFence, isFree, lockInfo, main, rejects, sleep, until } = require('./frame');
const { expectFree, runShared } = require('./shared');

class Universal {
  constructor(client, masters) {
    this.package = client;
    this.masters = masters;
    this.name = 'redlock-universal';
    this.version = versionOf('redlock-universal');
    this.variant = `${isIoredis(client) ? 'ioredis' : 'node-redis'} ${versionOf(client).split('.')[0]}, ${masters ? 'three masters' : 'one address'}`;
  }

  async adapter(address) {
    const client = await open(this.package, address);
    return isIoredis(this.package) ? new IoredisAdapter(client) : new NodeRedisAdapter(client);
  }

  /**
   * With N masters the connections last. One that was lost with its master must be there again before a check begins: a lock granted by two of
   * three cannot be released when one of the two dies.
   */
  async client(address) {
    if (!this.masters) return [await this.adapter(address)];
    this.all = this.all || Promise.all(REDLOCK.map((one) => this.adapter(one)));
    const adapters = await this.all;
    await until(() => adapters.every((adapter) => adapter.isConnected()), 5, 'not all masters are connected');
    return adapters;
  }

  lock(adapters, name, ttlMs, waitMs) {
    const settings = { key: name, ttl: ttlMs, retryAttempts: Math.ceil(waitMs / 100), retryDelay: 100 };
    return this.masters ? createRedlock({ adapters, ...settings }) : createLock({ adapter: adapters[0], ...settings });
  }

  async acquire(adapters, name, ttlMs, waitMs) {
    const lock = this.lock(adapters, name, ttlMs, waitMs);
    try {
      return { lock, handle: await lock.acquire() };
    } catch (error) {
      // A refusal and a failure come as the same error; a failure has a cause.
      if (error instanceof LockAcquisitionError && !/ECONN|closed|offline|UNAVAILABLE|INDETERMINATE/i.test(error.message)) return null;
      throw error;
    }
  }

  release(adapters, { lock, handle }) {
    return lock.release(handle);
  }

  async extend(adapters, held, ttlMs) {
    return (await held.lock.extend(held.handle, ttlMs)) ? held : null;
  }
}

async function singleOnly(library, report) {
  const [[first], [second]] = [await library.client(NODES[0]), await library.client(NODES[1])];

  await report.run('batch: all or nothing', async () => {
    const names = [freshName('batch'), freshName('batch'), freshName('batch')];
    const [mine, theirs] = [new LockManager({ nodes: [first] }), new LockManager({ nodes: [second] })];
    const handles = await mine.acquireBatch(names, { ttl: 20000, retryAttempts: 0 });
    expect(handles.length === 3, `${handles.length} of 3 handles`);
    for (const name of names) await heldFence(name);
    const fresh = freshName('batch');
    await rejects(theirs.acquireBatch([fresh, names[1]], { ttl: 20000, retryAttempts: 0 }), 'a batch with a held lock was granted');
    expect(await isFree(fresh), 'a refused batch left a lock behind');
    const told = await mine.releaseBatch(handles);
    expect(told.every(Boolean), `releaseBatch said ${told}`);
    for (const name of names) expect(await isFree(name), 'held after releaseBatch');
    await theirs.usingBatch(names, async () => heldFence(names[2]), { ttl: 20000 });
    for (const name of names) expect(await isFree(name), 'held after usingBatch');
  });
  await report.run('extend with three outcomes', async () => {
    const name = freshName('outcomes');
    const held = await library.acquire([first], name, 20000, 0);
    const fence = await heldFence(name);
    const { value } = held.handle;
    expect((await first.atomicExtend(name, value, 1000, 30000)).resultCode === 1, 'in time, but not extended');
    expect((await lockInfo(name)).ttl > 25000 && (await heldFence(name)) === fence, 'the extension does not show');
    const late = await first.atomicExtend(name, value, 60000, 90000);
    expect(late.resultCode === 0 && late.actualTTL > 0, `too late, but ${JSON.stringify(late)}`);
    expect((await second.atomicExtend(name, 'stranger', 1000, 30000)).resultCode === -1, "a stranger's extension");
    await held.lock.release(held.handle);
    expect((await first.atomicExtend(name, value, 1000, 30000)).resultCode === -1, 'extended after the release');
  });
  await report.run('inspect, isLocked', async () => {
    const name = freshName('inspect');
    const held = await library.acquire([first], name, 20000, 0);
    const seen = await second.inspect(name);
    expect(seen.value === held.handle.value && seen.ttl > 19000 && seen.ttl <= 20000, JSON.stringify(seen));
    expect(await held.lock.isLocked(name), 'isLocked says no');
    await held.lock.release(held.handle);
    expect((await second.inspect(name)) === null && !(await held.lock.isLocked(name)), 'inspect after the release');
  });
}

main(async () => {
  const library = new Universal(process.argv[2], process.argv[3] === 'masters');
  const report = await runShared(library);
  await report.run('using() extends by itself', async () => {
    const name = freshName('using');
    const adapters = await library.client(NODES[0]);
    // It looks after a lock at the earliest a second after the grant, and wants 2 s left then.
    const told = await library.lock(adapters, name, 4000, 0).using(async (signal) => {
      const fence = await heldFence(name);
      await sleep(4500);
      expect(!signal.aborted, `aborted: ${signal.error}`);
      expect((await heldFence(name)) === fence, 'the fence changed');
      return 'done';
    });
    expect(told === 'done', `using() returned ${told}`);
    await expectFree(library, name);
  });
  if (!library.masters) await singleOnly(library, report);
});
