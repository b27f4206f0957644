'use strict';
// How the Redis clients are opened: `ioredis5`, `ioredis6`, `redis4`, `redis5`, `redis6` are the names of package.json.

const fs = require('fs');
const path = require('path');
const { hostPort } = require('./frame');

// Read as a file: some packages do not export their package.json.
function versionOf(name) {
  return JSON.parse(fs.readFileSync(path.join(process.env.NODE_PATH, name, 'package.json'))).version.replace(/^v/, '');
}
const isIoredis = (name) => name.startsWith('ioredis');

/** An ioredis client that tells of a dead server after one attempt to reach it again, and goes on trying. */
function ioredis(name, address) {
  const Redis = require(name).default || require(name);
  const client = new Redis({ ...hostPort(address), maxRetriesPerRequest: 1, retryStrategy: () => 100 });
  client.on('error', () => {});
  return client;
}

/** A node-redis client that refuses commands while it is not connected, and goes on trying. */
async function nodeRedis(name, address) {
  const { createClient } = require(name);
  const client = createClient({ socket: { ...hostPort(address), reconnectStrategy: () => 100 }, disableOfflineQueue: true });
  client.on('error', () => {});
  // connect() waits for ever where the server is dead; the caller shall hear of it.
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`no connection to ${address}`)), 1000); });
  client.connect().catch(() => {});
  const ready = client.isReady ? null : new Promise((resolve) => client.once('ready', resolve));
  try {
    await Promise.race([ready, late]);
  } catch (error) {
    client.on('ready', () => {});
    await Promise.resolve(client.destroy ? client.destroy() : client.disconnect()).catch(() => {});
    throw error;
  } finally {
    clearTimeout(timer);
  }
  return client;
}

const open = (name, address) => (isIoredis(name) ? ioredis(name, address) : nodeRedis(name, address));

module.exports = { isIoredis, open, versionOf };
