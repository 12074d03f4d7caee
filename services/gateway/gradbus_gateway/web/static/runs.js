// All runs, newest first.
import { ask, poll } from "./api.js";
import { make, prose } from "./elements.js";
import { age, fixed, stateClass, stateWords } from "./words.js";

const PAGE = 30;

export async function showRuns({ root, signal, fail }) {
  document.title = "Runs · Gradbus";
  const list = make("div", {}, make("p", { class: "empty" }, "Reading …"));
  const trouble = make("p", { class: "note bad hidden", role: "alert" });
  const older = [];
  root.append(make("div", { class: "page-head" }, make("h1", {}, "Runs")), trouble, list);

  const render = (page) => {
    trouble.classList.add("hidden");
    const runs = [...page.data, ...older.flatMap((next) => next.data)];
    const last = older.at(-1) ?? page;
    const focused = document.activeElement?.id;
    list.replaceChildren(runs.length ? table(runs) : nothing(), last.has_more ? make("p", {}, make("button", { id: "older", onclick: () => more(page, last) }, "Older runs")) : "");
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };
  const more = async (page, last) => {
    older.push(await ask(`/v1/runs?limit=${PAGE}&after=${last.next_after}`, { signal }));
    render(page);
  };
  await poll(`/v1/runs?limit=${PAGE}`, 2, signal, render, (error) => {
    if (error.status === 401) return fail(error, root);
    trouble.classList.remove("hidden");
    trouble.replaceChildren(...prose(error.message));
  });
}

function table(runs) {
  const heads = [["Run"], ["State"], ["Steps"], ["Reward", "right"], ["Held-out", "right"], ["Submitted", "right"]];
  return make(
    "table", { class: "runs" },
    make("thead", {}, make("tr", {}, ...heads.map(([text, style]) => make("th", { class: style, scope: "col" }, text)))),
    make("tbody", {}, ...runs.map(row)),
  );
}

function row(run) {
  const { progress } = run;
  const labelled = (label, value) => make("td", { class: "right" }, make("span", { class: "only-narrow soft small" }, `${label} `), value);
  return make(
    "tr", {},
    make("td", {}, make("a", { id: `to-${run.id}`, href: `#/runs/${run.id}` }, run.name || run.id), make("div", { class: "soft small mono" }, run.id)),
    make("td", {}, make("span", { class: stateClass(run.state) }, stateWords(run.state)[0]), why(run)),
    make("td", { class: "steps" }, make("span", {}, `${progress.step} of ${run.steps}`), make("progress", { max: run.steps || 1, value: progress.step, "aria-label": "steps done" })),
    labelled("reward", fixed(progress.reward)),
    labelled("held-out", fixed(progress.accuracy)),
    make("td", { class: "right soft" }, run.created_at ? make("time", { datetime: run.created_at, title: new Date(run.created_at).toLocaleString() }, age(run.created_at)) : "–"),
  );
}

function why(run) {
  const text = run.waiting_for ? `waits for ${run.waiting_for}` : run.reason;
  return text ? make("div", { class: "soft small" }, text) : "";
}

function nothing() {
  return make(
    "div", { class: "empty" },
    make("p", {}, "No runs yet. Describe one in a file and submit it:"),
    make("pre", {}, "gradbus run my.toml --follow"),
    make("p", {}, ...prose("`examples/addition/addition.toml` in the repository shows what such a file says. The run appears here by itself.")),
  );
}
