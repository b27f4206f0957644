'use strict';
// What every check program needs: the addresses, the control port, a bare RESP connection for LOCK.*, and the JSON lines.

const net = require('net');

const NODES = process.env.INTEROP_NODES.split(',');
const REDLOCK = (process.env.INTEROP_REDLOCK || '').split(',').filter(Boolean);

// A small seeded generator (mulberry32), so that names and pauses repeat.
let state = Number(process.env.INTEROP_SEED || 0) >>> 0;
function chance() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = state;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}

let names = 0;
const freshName = (topic) => `interop:${topic}:${Math.floor(chance() * 1e9)}-${names++}`;
const hostPort = (address) => ({ host: address.split(':')[0], port: Number(address.split(':')[1]) });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => performance.now();

/** A check that did not hold; the text says what was seen. */
class Failed extends Error {}

function expect(condition, text) {
  if (!condition) throw new Failed(text);
}

/** The error the promise must end with. */
async function rejects(promise, text) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Failed(text);
}

/** Waits for the condition. */
async function until(condition, seconds, text) {
  const end = now() + seconds * 1000;
  while (!(await condition())) {
    expect(now() < end, `${text} within ${seconds} s`);
    await sleep(10);
  }
}

function within(promise, seconds, text) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Failed(`${text} within ${seconds} s`)), seconds * 1000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Sends one request over a connection of its own and reads until `parse` has a whole reply. */
function exchange(address, request, parse, seconds) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(hostPort(address));
    let received = Buffer.alloc(0);
    socket.setTimeout(seconds * 1000, () => socket.destroy(new Error(`no answer from ${address} in ${seconds} s`)));
    socket.on('error', reject);
    socket.on('close', () => reject(new Error(`${address} closed the connection`)));
    socket.on('data', (piece) => {
      received = Buffer.concat([received, piece]);
      const reply = parse(received);
      if (reply) {
        resolve(reply.value);
        socket.destroy();
      }
    });
    socket.write(request);
  });
}

/** One command to the driver; the addresses it answers with. */
async function control(line) {
  const whole = (bytes) => (bytes.includes('\n') ? { value: bytes.toString().trim() } : null);
  const [word, ...rest] = (await exchange(process.env.INTEROP_CONTROL, `${line}\n`, whole, 40)).split(' ');
  expect(word === 'ok', `control ${line}: ${word} ${rest.join(' ')}`);
  return rest;
}

/** An error reply of the server. */
class ReplyError extends Error {}

/** { value, next } of the reply that begins at `at`, or null where it is not all there. */
function readReply(bytes, at = 0) {
  const end = bytes.indexOf('\r\n', at);
  if (end < 0) return null;
  const kind = String.fromCharCode(bytes[at]);
  const rest = bytes.toString('utf8', at + 1, end);
  let next = end + 2;
  if (kind === ':') return { value: Number(rest), next };
  if (kind === '+') return { value: rest, next };
  if (kind === '-') return { value: new ReplyError(rest), next };
  const count = Number(rest);
  if (count < 0) return { value: null, next };
  if (kind === '$') return bytes.length < next + count + 2 ? null : { value: bytes.toString('utf8', next, next + count), next: next + count + 2 };
  const items = [];
  for (let i = 0; i < count; i++) {
    const item = readReply(bytes, next);
    if (!item) return null;
    items.push(item.value);
    next = item.next;
  }
  return { value: items, next };
}

async function rawAt(address, ...words) {
  const request = words.map(String).map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  const reply = await exchange(address, `*${words.length}\r\n${request.join('')}`, readReply, 15);
  if (reply instanceof ReplyError) throw reply;
  return reply;
}

/** One command to the first node that takes the connection. */
async function raw(...words) {
  let refused;
  for (const address of NODES) {
    try {
      return await rawAt(address, ...words);
    } catch (error) {
      if (error instanceof ReplyError) throw error;
      refused = error;
    }
  }
  throw refused;
}

async function lockInfo(key) {
  const pairs = await raw('LOCK.INFO', key);
  return Object.fromEntries(pairs.flatMap((name, i) => (i % 2 ? [] : [[name, pairs[i + 1]]])));
}

/** The fence under which the key is held; fails where it is free. */
async function heldFence(key) {
  const info = await lockInfo(key);
  expect(info.state === 'held' && info.fence > 0, `LOCK.INFO ${key} says ${JSON.stringify(info)}`);
  return info.fence;
}

const isFree = async (key) => (await lockInfo(key)).state === 'free';

/** Runs checks and prints their lines. A failure ends its check, not the others. */
class Report {
  constructor(library, version, variant) {
    this.fields = { library, version, variant };
  }

  async run(check, call) {
    const started = now();
    let ok = true;
    let detail;
    try {
      detail = (await call()) || `${Math.round(now() - started)} ms`;
    } catch (error) {
      ok = false;
      detail = error instanceof Failed ? error.message : `${error.name}: ${error.message}`;
      if (!(error instanceof Failed)) console.error(error);
    }
    process.stdout.write(`${JSON.stringify({ ...this.fields, check, ok, detail })}\n`);
  }
}

/** Ends the process when all is printed; open connections of a library must not keep it. */
function main(body) {
  // A waiter whose check has failed already may still end with an error; it must not take the other checks along.
  process.on('unhandledRejection', (error) => console.error('later:', error));
  body().then(
    () => process.stdout.write('', () => process.exit(0)),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = {
  NODES, REDLOCK, Failed, ReplyError, Report, chance, control, expect, freshName, heldFence, hostPort, isFree, lockInfo, main, now, raw, rawAt,
  rejects, sleep, until, within,
};
