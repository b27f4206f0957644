// Addresses inside the dashboard: `#/lock/wallet%3A7?sort=age` is the page, what follows it, and the query.

/** Where the browser is. What follows the page stays encoded: it is the lock's key. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [page, ...rest] = path.split("/");
  return { page: page || "overview", rest: rest.join("/"), query: new URLSearchParams(query || "") };
}

export function address(page, rest, query) {
  const filled = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(filled).toString();
  return `#/${page}${rest ? `/${rest}` : ""}${text ? `?${text}` : ""}`;
}
