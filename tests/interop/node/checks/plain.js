'use strict';
// A Redis client and the lock its users write by hand: SET NX PX, and two small scripts. `plain.js ioredis5|ioredis6|redis4|redis5|redis6`

const crypto = require('crypto');
const { isIoredis, open, versionOf } = require('./clients');
const { NODES, expect, freshName, heldFence, isFree, lockInfo, main, now, rejects, sleep, within } = require('./frame');
const { runShared } = require('./shared');

const RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const EXTEND = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

class Plain {
  constructor(client) {
    this.package = client;
    this.name = isIoredis(client) ? 'ioredis' : 'node-redis';
    this.version = versionOf(client);
    this.variant = 'SET NX PX + EVAL';
  }

  client(address) {
    return open(this.package, address);
  }

  set(client, key, value, ttlMs) {
    if (isIoredis(this.package)) return client.set(key, value, 'PX', ttlMs, 'NX');
    if (this.package === 'redis4') return client.set(key, value, { NX: true, PX: ttlMs });
    return client.set(key, value, { condition: 'NX', expiration: { type: 'PX', value: ttlMs } });
  }

  eval(client, script, key, ...args) {
    const words = args.map(String);
    return isIoredis(this.package) ? client.eval(script, 1, key, ...words) : client.eval(script, { keys: [key], arguments: words });
  }

  async acquire(client, name, ttlMs, waitMs) {
    const token = crypto.randomUUID();
    const end = now() + waitMs;
    for (;;) {
      const reply = await this.set(client, name, token, ttlMs);
      if (reply === 'OK') return { name, token };
      expect(reply === null, `SET NX was answered with ${reply}`);
      if (now() >= end) return null;
      await sleep(50);
    }
  }

  async release(client, { name, token }) {
    return (await this.eval(client, RELEASE, name, token)) === 1;
  }

  async extend(client, held, ttlMs) {
    return (await this.eval(client, EXTEND, held.name, held.token, ttlMs)) === 1 ? held : null;
  }
}

async function ioredisOnly(library, report, client) {
  await report.run('defineCommand (EVALSHA, then EVAL)', async () => {
    const name = freshName('define');
    client.defineCommand('giveBack', { numberOfKeys: 1, lua: RELEASE });
    await library.set(client, name, 'me', 20000);
    expect((await client.giveBack(name, 'you')) === 0, 'a stranger released');
    expect((await client.giveBack(name, 'me')) === 1, 'the holder could not release');
  });
  await report.run('pipeline', async () => {
    const name = freshName('pipeline');
    const replies = await client.pipeline().set(name, '1').incr(name).pttl(name).del(name).exec();
    expect(JSON.stringify(replies) === '[[null,"OK"],[null,2],[null,-1],[null,1]]', JSON.stringify(replies));
  });
  await report.run('MULTI, EXEC, WATCH', async () => {
    const name = freshName('multi');
    const replies = await client.multi().set(name, 'a', 'PX', 20000, 'NX').get(name).exec();
    expect(JSON.stringify(replies) === '[[null,"OK"],[null,"a"]]', JSON.stringify(replies));
    const other = await library.client(NODES[1]);
    await client.watch(name);
    await other.set(name, 'b');
    expect((await client.multi().set(name, 'c').exec()) === null, 'EXEC went on although a watched key had changed');
    expect((await other.get(name)) === 'b', 'a refused transaction left its mark');
  });
  await report.run('PUBLISH, SUBSCRIBE', async () => {
    const channel = freshName('channel');
    const listener = await library.client(NODES[1]);
    const heard = new Promise((resolve) => listener.on('message', (from, text) => resolve([from, text].join(' '))));
    await listener.subscribe(channel);
    await client.publish(channel, 'hello');
    expect((await within(heard, 5, 'no message came')) === `${channel} hello`, `heard ${await heard}`);
    await listener.unsubscribe(channel);
    expect((await listener.get('nobody')) === null, 'GET after UNSUBSCRIBE');
  });
}

async function nodeRedisOnly(library, report, client) {
  await report.run('pipeline (commands of one tick)', async () => {
    const name = freshName('pipeline');
    const replies = await Promise.all([client.set(name, '1'), client.incr(name), client.pTTL(name), client.del(name)]);
    expect(JSON.stringify(replies) === '["OK",2,-1,1]', JSON.stringify(replies));
  });
  await report.run('MULTI, EXEC, WATCH', async () => {
    const name = freshName('multi');
    const replies = await client.multi().set(name, 'a').get(name).exec();
    expect(JSON.stringify(replies) === '["OK","a"]', JSON.stringify(replies));
    const other = await library.client(NODES[1]);
    await client.watch(name);
    await other.set(name, 'b');
    const error = await rejects(client.multi().set(name, 'c').exec(), 'EXEC went on although a watched key had changed');
    expect(error.constructor.name === 'WatchError', `EXEC of a changed key ended with ${error}`);
    expect((await other.get(name)) === 'b', 'a refused transaction left its mark');
  });
  await report.run('PUBLISH, SUBSCRIBE', async () => {
    const channel = freshName('channel');
    const listener = await library.client(NODES[1]);
    let told;
    const heard = new Promise((resolve) => { told = resolve; });
    await listener.subscribe(channel, (text, from) => told(`${from} ${text}`));
    await client.publish(channel, 'hello');
    expect((await within(heard, 5, 'no message came')) === `${channel} hello`, `heard ${await heard}`);
    await listener.unsubscribe(channel);
    expect((await listener.get('nobody')) === null, 'GET after UNSUBSCRIBE');
  });
}

main(async () => {
  const library = new Plain(process.argv[2]);
  const report = await runShared(library);
  const client = await library.client(NODES[0]);
  await report.run('GET and LOCK.INFO show the owner', async () => {
    const name = freshName('owner');
    await library.set(client, name, 'me', 20000);
    await heldFence(name);
    expect((await client.get(name)) === 'me' && (await lockInfo(name)).owner === 'me', 'another owner');
    await client.del(name);
    expect(await isFree(name), 'held after DEL');
  });
  await (isIoredis(library.package) ? ioredisOnly : nodeRedisOnly)(library, report, client);
});
