// The frame of the dashboard: who is looked at by whom, the way to each page, and what every page is given.

import { get, post } from "/ui/api.js";
import { h, update } from "/ui/dom.js";
import { plain } from "/ui/format.js";
import { trouble } from "/ui/parts.js";
import { address, place } from "/ui/place.js";
import * as audit from "/ui/audit.js";
import * as cluster from "/ui/cluster.js";
import * as contention from "/ui/contention.js";
import * as events from "/ui/events.js";
import * as lock from "/ui/lock.js";
import * as locks from "/ui/locks.js";
import * as login from "/ui/login.js";
import * as overview from "/ui/overview.js";
import * as routes from "/ui/routes.js";
import * as sessions from "/ui/sessions.js";

const PAGES = { overview, locks, lock, sessions, contention, events, cluster, routes, audit, login };
const MENU = ["overview", "locks", "sessions", "contention", "events", "cluster", "routes", "audit"];

const main = document.getElementById("main");
const announcer = document.getElementById("announce");
let leaving = null; // ends the page that is shown
let who = { user: null, login_needed: false, may: {} };
let first = true;

/** Tells a screen reader; repeated words are told again. */
function announce(text) {
  announcer.textContent = "";
  setTimeout(() => (announcer.textContent = text), 50);
}

function drawFrame(shown) {
  const current = shown === "lock" ? "locks" : shown;
  update(
    document.getElementById("nav"),
    h("ul", null, MENU.map((page) => h("li", null, h("a", { href: `#/${page}`, "aria-current": page === current ? "page" : null }, PAGES[page].title)))),
  );
  document.getElementById("node").textContent = who.node ? `node ${who.node}` : "";
  const mayAct = Object.entries(who.may || {}).some(([act, may]) => act !== "audit" && may);
  update(
    document.getElementById("account"),
    who.user ? h("span", { class: "user" }, h("bdi", null, plain(who.user)), h("span", { class: "muted" }, mayAct ? "" : " · read-only")) : null,
    who.user && shown !== "login" ? h("a", { href: address("login", "", { to: location.hash.slice(1) }) }, loggedIn() ? "Switch user" : "Log in") : null,
    loggedIn() ? h("button", { type: "button", class: "plain", onclick: logout }, "Log out") : null,
  );
}

/** Whether there is a login to end; else one is the default user who needs none, or known by a certificate. */
function loggedIn() {
  return who.user !== null && who.logged_in === true;
}

async function logout() {
  try {
    await post("logout");
  } catch (error) {
    update(main, trouble(error));
    return;
  }
  announce("Logged out");
  await ask();
  show();
}

async function ask() {
  who = await get("whoami");
}

async function show() {
  if (leaving) leaving.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  const at = place();
  if (!PAGES[at.page]) {
    location.replace("#/overview");
    return;
  }
  if (first || who.user === null) {
    try {
      await ask();
    } catch (error) {
      update(main, h("h1", null, "Redfence"), trouble(error));
      setTimeout(() => !signal.aborted && show(), 3000);
      return;
    }
    if (signal.aborted) return;
  }
  const name = who.login_needed && who.user === null ? "login" : at.page;
  const page = PAGES[name];
  drawFrame(name);
  document.title = `${page.title} · Redfence`;
  main.replaceChildren();
  const heading = h("h1", { tabindex: "-1", id: "title" }, page.title);
  const root = h("div", { class: `page page-${name}` });
  main.append(heading, root);
  page.mount({
    root,
    heading,
    signal,
    who,
    rest: at.rest,
    query: at.query,
    announce,
    /** Changes the query of this page's address without leaving the page. */
    remember: (query) => history.replaceState(null, "", address(at.page, at.rest, query)),
    /** What a page does with an error: a session that ended leads to the login. */
    failed: (error, where) => {
      if (signal.aborted || error.name === "AbortError") return;
      if (error.status === 401) {
        who = { user: null, login_needed: true, may: {} };
        show();
        return;
      }
      for (const one of root.querySelectorAll(".asking")) one.remove();
      update(where, trouble(error));
    },
    entered: async () => {
      await ask();
      const to = at.query.get("to");
      announce(`Logged in as ${who.user}`);
      const wanted = to && to.startsWith("/") && !to.startsWith("/login") ? `#${to}` : at.page === "login" ? "#/overview" : location.hash;
      if (location.hash === wanted) show();
      else location.hash = wanted;
    },
  });
  if (!first) {
    heading.focus();
    window.scrollTo(0, 0);
  }
  first = false;
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
show();
