// Waiting for what must come: no fixed sleeps, and limits that a busy machine keeps.

const LIMIT_MS = 60_000;

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** An error after which waiting is in vain. */
export class Hopeless extends Error {}

/** Asks again until `ask` answers without throwing and not false; returns the answer. The last error is told at the end. */
export async function until(what, ask, limitMs = LIMIT_MS) {
  const end = Date.now() + limitMs;
  let last = null;
  for (;;) {
    try {
      const answer = await ask();
      if (answer !== false && answer !== undefined && answer !== null) return answer;
      last = `last answer: ${answer}`;
    } catch (error) {
      if (error instanceof Hopeless) throw error;
      last = error.message;
    }
    if (Date.now() > end) throw new Error(`not within ${limitMs / 1000} s: ${what}; ${last}`);
    await pause(50);
  }
}
