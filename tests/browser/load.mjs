// Locks that stay as they are, to be compared with; and a load that goes on while nodes die.

import { Connection } from "./resp.mjs";
import { pause } from "./until.mjs";

const TTL_MS = 600_000;

/** Names that a page must show as text. Bytes of every value; markup; text of the other direction; what means something in addresses. */
export const HOSTILE = [
  Buffer.from("<img src=x onerror=alert(1)>"),
  Buffer.from("</td></table><script>alert(1)</script>"),
  Buffer.from("\"'><b onmouseover=alert(1)>bold</b>&lt;&amp;"),
  Buffer.from("javascript:alert(1)//{{7*7}}${7*7}"),
  Buffer.from("\u202emoc.live\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627"),
  Buffer.from("a b?c=d&e#f/../g%2fh;i,j+k"),
  Buffer.from("h*sti?[l]e\\"),
  Buffer.from("line\r\nbreak\ttab\0zero\x1b[31m"),
  Buffer.concat([Buffer.from([...Array(256).keys()]), Buffer.from([...Array(256).keys()].reverse())]),
  Buffer.from("w".repeat(512)),
  Buffer.from("%2e%2e"),
];

/** The text of a name as the API gives it: UTF-8, other bytes and control characters as \xNN, a backslash as two, and then what the page makes seen. */
export function shown(name) {
  let text = "";
  for (let at = 0; at < name.length; ) {
    const size = name[at] < 0x80 ? 1 : name[at] >= 0xf0 ? 4 : name[at] >= 0xe0 ? 3 : 2;
    const piece = name.subarray(at, at + size);
    const decoded = piece.toString("utf8");
    const isWhole = Buffer.from(decoded, "utf8").equals(piece) && !decoded.includes("\ufffd");
    if (isWhole && !/[\u0000-\u001f\u007f-\u009f]/.test(decoded)) {
      text += decoded === "\\" ? "\\\\" : decoded;
      at += piece.length;
    } else {
      const bytes = isWhole ? piece : piece.subarray(0, 1);
      for (const byte of bytes) text += `\\x${byte.toString(16).padStart(2, "0")}`;
      at += bytes.length;
    }
  }
  return text.replace(/[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

export function keyOf(name) {
  return [...name].map((byte) => (/[A-Za-z0-9\-_.~]/.test(String.fromCharCode(byte)) ? String.fromCharCode(byte) : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`)).join("");
}

/** Held locks of every mode, three sessions that wait for each other in a chain, and a queue. */
export async function fixture(port, login) {
  const keeper = await Connection.open(port, login);
  for (let index = 1; index <= 25; index += 1) await keeper.call("LOCK.ACQUIRE", `wallet:${index}`, TTL_MS + index * 1000, "OWNER", `wallet-owner-${index}`);
  for (const reader of ["reader-1", "reader-2"]) await keeper.call("LOCK.ACQUIRE", "report:daily", TTL_MS, "OWNER", reader, "SHARED");
  for (const user of ["gpu-1", "gpu-2"]) await keeper.call("LOCK.ACQUIRE", "pool:gpu", TTL_MS, "OWNER", user, "PERMITS", 2, "OF", 8, "VALUE", "rack-7");
  for (const [index, name] of HOSTILE.entries()) await keeper.call("LOCK.ACQUIRE", name, TTL_MS, "OWNER", `<i>hostile-${index}</i>`);

  // A past, so that there are estimates.
  for (let turn = 0; turn < 8; turn += 1) {
    const [fence] = await keeper.call("LOCK.ACQUIRE", "chain:a", TTL_MS, "OWNER", `past-${turn}`);
    await pause(20);
    await keeper.call("LOCK.RELEASE", "chain:a", fence);
  }
  const connections = [keeper];
  const sessions = [];
  for (const label of ["checkout", "billing", "deploy"]) {
    const connection = await Connection.open(port, login);
    const id = await connection.call("LOCK.SESSION", "OPEN", TTL_MS, "NAME", label);
    connections.push(connection);
    sessions.push({ id, label, connection });
  }
  for (const [index, name] of ["chain:a", "chain:b", "chain:c"].entries()) {
    await sessions[index].connection.call("LOCK.ACQUIRE", name, 0, "SESSION", sessions[index].id, "OWNER", `${sessions[index].label}-1`);
  }
  // Not waited for: they stand in the queue as long as the test runs.
  const stand = (connection, ...words) => connection.call(...words).catch(() => null);
  for (const index of [0, 1]) {
    stand(sessions[index].connection, "LOCK.ACQUIRE", ["chain:b", "chain:c"][index], 0, "SESSION", sessions[index].id, "OWNER", `${sessions[index].label}-2`, "WAIT", 3_000_000);
  }
  for (let place = 1; place <= 3; place += 1) {
    const connection = await Connection.open(port, login);
    connections.push(connection);
    stand(connection, "LOCK.ACQUIRE", "chain:a", TTL_MS, "OWNER", `in-line-${place}`, "WAIT", 3_000_000);
    // One after the other, so that the order is known.
    while ((await keeper.map("LOCK.INFO", "chain:a")).waiters < place) await pause(10);
  }
  while ((await keeper.map("LOCK.INFO", "chain:b")).waiters < 1 || (await keeper.map("LOCK.INFO", "chain:c")).waiters < 1) await pause(10);
  return { keeper, sessions, close: () => connections.forEach((connection) => connection.close()) };
}

/** Clients that take and release a few hot names through whichever node lives, until stopped. */
export function load(nodes, login) {
  let running = true;
  let grants = 0;
  const worker = async (number) => {
    let connection = null;
    for (let turn = 0; running; turn += 1) {
      try {
        if (!connection) {
          const living = nodes().filter((node) => node.ended === null);
          connection = await Connection.open(living[(number + turn) % living.length].port, login);
        }
        const name = `hot:${(number + turn) % 5}`;
        const reply = await connection.call("LOCK.ACQUIRE", name, 5000, "WAIT", 2000);
        if (reply) {
          grants += 1;
          await pause(number % 3);
          await connection.call("LOCK.RELEASE", name, reply[0]);
        }
      } catch {
        // The node died or has no quorum: another one, a little later.
        if (connection) connection.close();
        connection = null;
        await pause(50);
      }
    }
    if (connection) connection.close();
  };
  const workers = [...Array(12).keys()].map(worker);
  return {
    grants: () => grants,
    stop: async () => {
      running = false;
      await Promise.all(workers);
    },
  };
}
