// A small RESP2 client: what LOCK.* answers is what the pages must show.

import net from "node:net";

export class RespError extends Error {}

export class Connection {
  /** Connects, and logs in where a user is named. */
  static async open(port, login) {
    const socket = net.connect({ host: "127.0.0.1", port });
    await new Promise((resolve, reject) => socket.once("connect", resolve).once("error", reject));
    const connection = new Connection(socket);
    if (login) await connection.call("AUTH", login.user, login.password);
    return connection;
  }

  constructor(socket) {
    this.socket = socket;
    this.unread = Buffer.alloc(0);
    this.waiting = [];
    this.hasEnded = false;
    socket.on("data", (piece) => {
      this.unread = Buffer.concat([this.unread, piece]);
      this.deliver();
    });
    const end = (error) => {
      this.hasEnded = true;
      for (const { reject } of this.waiting.splice(0)) reject(error || new Error("the connection ended"));
    };
    socket.on("error", end).on("close", () => end());
  }

  deliver() {
    while (this.waiting.length) {
      const parsed = parse(this.unread, 0);
      if (!parsed) return;
      this.unread = this.unread.subarray(parsed.end);
      const { resolve, reject } = this.waiting.shift();
      if (parsed.value instanceof RespError) reject(parsed.value);
      else resolve(parsed.value);
    }
  }

  /** Words are strings, numbers or bytes. Bulk strings come back as bytes. */
  raw(...words) {
    const parts = [Buffer.from(`*${words.length}\r\n`)];
    for (const word of words) {
      const bytes = Buffer.isBuffer(word) ? word : Buffer.from(String(word));
      parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from("\r\n"));
    }
    return new Promise((resolve, reject) => {
      if (this.hasEnded) {
        reject(new Error("the connection ended"));
        return;
      }
      this.waiting.push({ resolve, reject });
      this.socket.write(Buffer.concat(parts));
    });
  }

  /** The same with bytes as text. */
  async call(...words) {
    return text(await this.raw(...words));
  }

  /** The same for answers that are maps (flat arrays in RESP2). */
  async map(...words) {
    return toMap(await this.call(...words));
  }

  close() {
    this.socket.destroy();
  }
}

function text(value) {
  if (Buffer.isBuffer(value)) return value.toString();
  return Array.isArray(value) ? value.map(text) : value;
}

export function toMap(pairs) {
  const map = {};
  for (let index = 0; index < pairs.length; index += 2) map[pairs[index]] = pairs[index + 1];
  return map;
}

function parse(bytes, start) {
  const lineEnd = bytes.indexOf("\r\n", start);
  if (lineEnd < 0) return null;
  const line = bytes.toString("latin1", start + 1, lineEnd);
  const after = lineEnd + 2;
  switch (String.fromCharCode(bytes[start])) {
    case "+":
      return { value: line, end: after };
    case "-":
      return { value: new RespError(line), end: after };
    case ":":
      return { value: Number(line), end: after };
    case "$": {
      const size = Number(line);
      if (size < 0) return { value: null, end: after };
      return bytes.length < after + size + 2 ? null : { value: bytes.subarray(after, after + size), end: after + size + 2 };
    }
    case "*": {
      if (Number(line) < 0) return { value: null, end: after };
      const value = [];
      let end = after;
      for (let index = 0; index < Number(line); index += 1) {
        const item = parse(bytes, end);
        if (!item) return null;
        value.push(item.value);
        end = item.end;
      }
      return { value, end };
    }
    default:
      throw new Error(`a reply of unknown kind: ${bytes.toString("latin1", start, lineEnd)}`);
  }
}
