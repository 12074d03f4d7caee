// The shell: who is signed in, and which view the address asks for. A view gets a signal that is aborted when it is left.
import { ask } from "./api.js";
import { make, prose } from "./elements.js";
import { showRuns } from "./runs.js";
import { showRun } from "./run.js";
import { showSamples } from "./samples.js";
import { showSample } from "./sample.js";

const ROUTES = [
  [/^\/$/, showRuns],
  [/^\/runs\/([a-z0-9-]{1,63})$/, showRun],
  [/^\/runs\/([a-z0-9-]{1,63})\/samples$/, showSamples],
  [/^\/runs\/([a-z0-9-]{1,63})\/samples\/(\d{1,18}\.\d{1,9})$/, showSample],
];
const main = document.querySelector("#main");
let leaving = new AbortController();
let caller = null;

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (!caller && !(await meet())) return;
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const [pattern, view] = ROUTES.find(([pattern]) => pattern.test(path)) ?? [];
  const root = make("div");
  main.replaceChildren(root);
  if (!view) {
    root.append(make("p", { class: "empty" }, "There is no such view. ", make("a", { href: "#/" }, "All runs")));
    return;
  }
  const context = { root, signal, query: new URLSearchParams(query), may: (scope) => caller.scopes.includes(scope) || caller.scopes.includes("admin"), fail };
  try {
    await view(context, ...path.match(pattern).slice(1));
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) fail(error, root);
  }
}

async function meet() {
  try {
    caller = await ask("/v1/caller");
  } catch (error) {
    if (error.status === 401) signedOut("You are not signed in, or the session is over.");
    else {
      lone("Gradbus", error.message, make("button", { onclick: show }, "Try again"));
    }
    return false;
  }
  document.querySelector("#who").replaceChildren(make("span", {}, caller.name), make("button", { class: "plain", onclick: signOut }, "Sign out"));
  return true;
}

/** Says what went wrong where the content would be; a session that is over ends the page. */
function fail(error, root) {
  if (error.status === 401) {
    caller = null;
    leaving.abort();
    signedOut("The session is over.");
  } else {
    root.replaceChildren(make("div", { class: "empty", role: "alert" }, make("p", {}, ...prose(error.message)), make("p", {}, make("a", { href: "#/" }, "All runs"))));
  }
}

async function signOut() {
  leaving.abort(); // nothing more is asked that would be refused
  await fetch("/sign-out", { method: "POST" });
  caller = null;
  signedOut("You are signed out.");
}

function signedOut(why) {
  document.querySelector("#who").replaceChildren();
  lone("Gradbus", `${why} Run \`gradbus open\` in a terminal: it prints a link that signs this browser in.`);
}

function lone(title, text, ...more) {
  main.replaceChildren(make("div", { class: "lone" }, make("h1", {}, title), make("p", { role: "status" }, ...prose(text)), ...more));
}

addEventListener("hashchange", () => {
  show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
show();
