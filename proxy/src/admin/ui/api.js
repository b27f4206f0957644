// Talks to /api/v1: the same that scripts use.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "UNREACHABLE", "The node does not answer. Is it running? This page tries again by itself.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && body !== null) return body;
  const told = (body && body.error) || {};
  throw new ApiError(response.status, told.code || `HTTP ${response.status}`, told.message || `The node answered with status ${response.status}.`);
}

export function get(path, params, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params || {})) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return answer(fetch(`/api/v1/${path}${text ? `?${text}` : ""}`, { signal, headers: { Accept: "application/json" }, cache: "no-store" }));
}

export function post(path, body) {
  return answer(
    fetch(`/api/v1/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify(body || {}),
      cache: "no-store",
    }),
  );
}

const RETRY_MS = [1000, 2000, 5000, 10_000];

/** What `gap` hears where events were missed because nobody looked. */
export const AWAY = "away";

/**
 * The live feed of events whose names match the glob (percent-encoded: names are bytes), until the signal.
 * `state` hears `live` and `lost`; a lost feed is tried again by itself. Closed while the tab is hidden: a browser has six connections to a
 * node, and every page with a feed holds one.
 */
export function feed(match, { event, gap, state }, signal) {
  let source = null;
  let retry = null;
  let failures = 0;
  const close = () => {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  };
  const open = () => {
    close();
    source = new EventSource(`/api/v1/events${match ? `?match=${match}` : ""}`);
    source.onopen = () => {
      failures = 0;
      state("live");
    };
    source.addEventListener("lock", (message) => event(JSON.parse(message.data)));
    source.addEventListener("gap", (message) => gap(JSON.parse(message.data).lost));
    source.onerror = () => {
      state("lost");
      // A broken connection is tried again by the browser; a refused one is not.
      if (source && source.readyState === EventSource.CLOSED) {
        retry = setTimeout(open, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
        failures += 1;
      }
    };
  };
  let isAway = document.hidden;
  const look = () => {
    if (document.hidden === isAway) return;
    isAway = document.hidden;
    if (isAway) {
      close();
    } else {
      gap(AWAY);
      open();
    }
  };
  if (!isAway) open();
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", () => {
    document.removeEventListener("visibilitychange", look);
    close();
  });
}
