// The list of runs, newest first.
import { poll } from "../lib/api.js";
import { make, withCode } from "../lib/elements.js";
import { explanationOf } from "../lib/explanation.js";
import { age, fixed, stateClass, stateText } from "../lib/format.js";
import { tagLinks } from "./annotations.js";
import { Picks } from "./picks.js";

const FIRST = 30;
const MOST = 1000;

export async function showRuns({ root, signal, query, showError }) {
  document.title = "Runs · Gradbus";
  const tags = query.getAll("tag");
  const selection = tags.map((tag) => `&tag=${encodeURIComponent(tag)}`).join("");
  const list = make("div", {}, make("p", { class: "empty" }, "Loading …"));
  const problem = make("div", { class: "note bad hidden", role: "alert" });
  const picks = new Picks();
  root.append(make("div", { class: "view-head" }, make("h1", {}, tags.length ? `Runs tagged ${tags.join(" and ")}` : "Runs"), tags.length > 0 && make("a", { href: "#/" }, "All runs"), picks.element), problem, list);
  let polling = new AbortController();

  /** Shows the newest `limit` runs and keeps them current; more of them are read less often. */
  const showNewest = (limit) => {
    polling.abort();
    polling = new AbortController();
    const onError = (error) => {
      if (error.status === 401) return showError(error, root);
      problem.classList.remove("hidden");
      problem.replaceChildren(...explanationOf(error));
    };
    return poll(`/v1/runs?limit=${limit}${selection}`, Math.max(2, limit / 100), AbortSignal.any([signal, polling.signal]), (page) => render(page, limit), onError);
  };
  const render = (page, limit) => {
    problem.classList.add("hidden");
    const focused = document.activeElement?.id;
    list.replaceChildren(page.data.length ? table(page.data, picks) : tags.length ? make("p", { class: "empty" }, "No run has these tags.") : emptyList(), page.has_more ? older(limit) : "");
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };
  const older = (limit) =>
    limit < MOST
      ? make("p", {}, make("button", { id: "older", onclick: () => showNewest(Math.min(2 * limit, MOST)) }, "Older runs"))
      : make("p", { class: "soft" }, ...withCode(`These are the newest ${MOST}; \`GET /v1/runs?after=ID\` lists older ones.`));
  await showNewest(FIRST);
}

function table(runs, picks) {
  const heads = [["Run"], ["State"], ["Steps"], ["Reward", "right"], ["Held-out", "right"], ["Submitted", "right"]];
  return make(
    "table", { class: "runs" },
    make("thead", {}, make("tr", {}, ...heads.map(([text, style]) => make("th", { class: style, scope: "col" }, text)))),
    make("tbody", {}, ...runs.map((run) => row(run, picks))),
  );
}

/** Of a run on given responses: its held-out loss, or without one the accuracy of its pairs. */
function second(score, { held_out_loss: loss, pair_accuracy: accuracy }) {
  if (loss !== null) return score("held-out loss", fixed(loss), "");
  return accuracy === null ? make("td") : score("accuracy", fixed(accuracy), "");
}

function row(run, picks) {
  const { progress } = run;
  const score = (label, value, style = "only-narrow ") => make("td", { class: "right" }, make("span", { class: `${style}soft small` }, `${label} `), value);
  // The columns are those of runs with rewards; the figures of another run say what they are.
  const scores = isRewarded(run)
    ? [isTaught(run) ? score("KL to teacher", fixed(progress.teacher_kl), "") : score("reward", fixed(progress.reward)), score("held-out", fixed(progress.accuracy))]
    : [score("loss", fixed(progress.loss), ""), second(score, progress)];
  return make(
    "tr", {},
    make("td", {}, run.state !== "unreadable" && picks.box(run), make("a", { id: `to-${run.id}`, href: `#/runs/${run.id}` }, run.name || run.id), make("div", { class: "soft small" }, make("span", { class: "mono" }, run.id), run.kind ? ` · ${run.kind}` : ""), run.tags.length > 0 && make("div", { class: "row tags" }, ...tagLinks(run))),
    make("td", {}, make("span", { class: stateClass(run.state) }, stateText(run.state)[0]), reason(run)),
    make("td", { class: "steps" }, make("span", {}, `${progress.step} of ${run.steps}`), make("progress", { max: run.steps || 1, value: progress.step, "aria-label": "steps done" })),
    ...scores,
    make("td", { class: "right soft" }, run.created_at ? make("time", { datetime: run.created_at, title: new Date(run.created_at).toLocaleString() }, age(run.created_at)) : "–"),
  );
}

/** Whether it samples and has rewards; nothing is known of an unreadable run. */
const isRewarded = (run) => run.kind === "rl" || run.kind === null;

/** Whether a teacher judges its samples, and no scorer. */
const isTaught = ({ progress }) => progress.reward === null && progress.teacher_kl !== null;

function reason(run) {
  const text = run.waiting_for ? `waits for ${run.waiting_for}` : run.reason;
  return text ? make("div", { class: "soft small" }, ...withCode(text)) : "";
}

function emptyList() {
  return make(
    "div", { class: "empty" },
    make("p", {}, "No runs yet. Describe a run in a file and submit it:"),
    make("pre", {}, "gradbus run my.toml --follow"),
    make("p", {}, ...withCode("`examples/addition/addition.toml` in the repository is such a file. The run appears here by itself.")),
  );
}
