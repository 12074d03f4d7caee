// The shell: loads the signed-in caller, and shows the view that the address names. A view gets a signal that is aborted when it is left.
import { showRunComparison } from "./compare/compare_view.js";
import { fetchJson } from "./lib/api.js";
import { make, withCode } from "./lib/elements.js";
import { showPlan } from "./plan/plan_view.js";
import { showRuns } from "./run/run_list.js";
import { showRun } from "./run/run_view.js";
import { showComparison } from "./samples/comparison_view.js";
import { showSample } from "./samples/sample_view.js";

const ROUTES = [
  [/^\/$/, showRuns],
  [/^\/plan$/, showPlan],
  [/^\/runs\/([a-z0-9-]{1,63})$/, showRun],
  [/^\/runs\/([a-z0-9-]{1,63})\/samples$/, showComparison],
  [/^\/runs\/([a-z0-9-]{1,63})\/samples\/(\d{1,18}\.\d{1,9})$/, showSample],
  [/^\/compare$/, showRunComparison],
];
const main = document.querySelector("#main");
let current = new AbortController();
let caller = null;

async function show() {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  if (!caller && !(await loadCaller())) return;
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const [pattern, view] = ROUTES.find(([pattern]) => pattern.test(path)) ?? [];
  const root = make("div");
  main.replaceChildren(root);
  if (!view) {
    root.append(make("h1", {}, "There is no such view"), make("p", { class: "empty" }, make("a", { href: "#/" }, "All runs")));
    return;
  }
  const can = (scope) => caller.scopes.includes(scope) || caller.scopes.includes("admin");
  const context = { root, signal, query: new URLSearchParams(query), can, showError };
  try {
    await view(context, ...path.match(pattern).slice(1));
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) showError(error, root);
  }
}

async function loadCaller() {
  try {
    caller = await fetchJson("/v1/caller");
  } catch (error) {
    if (error.status === 401) showSignedOut("You are not signed in, or the session has ended.");
    else showMessage("Gradbus", error.message, make("button", { onclick: show }, "Try again"));
    return false;
  }
  document.querySelector("#who").replaceChildren(make("span", {}, caller.name), make("button", { class: "plain", onclick: signOut }, "Sign out"));
  return true;
}

/** Shows an error in place of the view's content; if the session has ended, in place of the whole view. */
function showError(error, root) {
  if (error.status === 401) {
    caller = null;
    current.abort();
    showSignedOut("The session has ended.");
  } else {
    root.replaceChildren(make("div", { class: "empty", role: "alert" }, make("p", {}, ...withCode(error.message)), make("p", {}, make("a", { href: "#/" }, "All runs"))));
  }
}

async function signOut() {
  current.abort(); // requests after the sign-out would be refused
  await fetch("/sign-out", { method: "POST" });
  caller = null;
  showSignedOut("You are signed out.");
}

function showSignedOut(reason) {
  document.querySelector("#who").replaceChildren();
  showMessage("Gradbus", `${reason} Run \`gradbus open\` in a terminal: it prints a link that signs this browser in.`);
}

function showMessage(title, text, ...more) {
  main.replaceChildren(make("div", { class: "message" }, make("h1", {}, title), make("p", { role: "status" }, ...withCode(text)), ...more));
}

addEventListener("hashchange", () => {
  show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
show();
