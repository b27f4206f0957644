// Asks again and again while the page is looked at.

/**
 * Calls `ask` now and then `every` milliseconds after each answer, until the signal. Rests while the tab is hidden.
 * Returns a function that asks at once.
 */
export function poll(every, signal, ask) {
  let timer = null;
  let running = false;
  let again = false;
  const turn = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      await ask();
    } finally {
      running = false;
      if (!signal.aborted) {
        const soon = again;
        again = false;
        timer = setTimeout(() => (document.hidden ? (timer = null) : turn()), soon ? 0 : every);
      }
    }
  };
  const seen = () => {
    if (!document.hidden && timer === null) turn();
  };
  document.addEventListener("visibilitychange", seen);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  });
  turn();
  return turn;
}
