// The top of a run's view: name, state, progress, key figures and buttons.
import { comparisonOf } from "../compare/address.js";
import { make, setText, setTextWithCode, withCode } from "../lib/elements.js";
import { age, duration, FINAL, fixed, number, stateClass, stateText } from "../lib/format.js";
import { readsRewards, trainsGiven, trainsPairs } from "../lib/run_kind.js";
import { AnnotationPanel } from "./annotations.js";
import { runActions } from "./run_actions.js";

export class RunHeader {
  constructor(context, run, onChange) {
    this.chip = make("span");
    this.detail = make("span", { class: "soft" });
    this.progress = make("progress", { "aria-label": "steps done" });
    this.problem = make("p", { class: "note bad hidden", role: "alert" });
    this.reason = make("p", { class: "note warn hidden", role: "status" });
    this.figures = Object.fromEntries(["Step", ...Object.keys(scores(run)), "Speed", "Checkpoint"].map((name) => [name, make("dd", { class: "num" }, "–")]));
    this.actions = runActions(context, run, onChange);
    this.annotations = new AnnotationPanel(context, run, onChange);
    this.element = make(
      "header", { class: "run-head" },
      make("div", { class: "view-head" }, make("div", {}, make("h1", {}, run.name || run.id), make("p", { class: "soft small" }, make("span", { class: "mono" }, run.id), ` · ${trainsGiven(run.spec) ? run.kind : `${run.kind} · ${run.spec.algorithm.name}`}${queue(run)} · ${age(run.created_at)}`)), this.actions.element),
      make("p", { class: "state-line" }, this.chip, " ", this.detail),
      this.annotations.element,
      this.progress, this.reason, this.problem,
      make("div", { class: "figures-row" }, make("dl", { class: "figures" }, ...Object.entries(this.figures).map(([name, value]) => make("div", {}, make("dt", {}, name), value))), make("p", { class: "row" }, make("a", { class: "to-samples", href: `#/runs/${run.id}/samples` }, "Samples side by side"), make("a", { href: comparisonOf([run.id]) }, "Compare with other runs"), make("a", { href: `#/plan?run=${run.id}` }, "Plan of its spec"))),
    );
  }

  set(run, history) {
    const { progress } = run;
    const rates = history.rates(FINAL.has(run.state));
    this.chip.className = stateClass(run.state);
    setText(this.chip, stateText(run.state)[0]);
    setText(this.detail, detail(run, rates));
    this.progress.max = run.steps;
    this.progress.value = progress.step;
    const reason = run.waiting_for ? `Waits for ${run.waiting_for}` : run.reason;
    this.reason.className = `note ${run.state === "failed" ? "bad" : "warn"} ${reason ? "" : "hidden"}`;
    setTextWithCode(this.reason, reason);
    this.problem.classList.add("hidden");
    setText(this.figures.Step, `${progress.step} of ${run.steps}`);
    for (const [name, text] of Object.entries(scores(run))) setText(this.figures[name], text);
    setText(this.figures.Speed, rates ? `${number(rates.tokens, 0)} tok/s` : "–");
    setText(this.figures.Checkpoint, progress.checkpoint_step > 0 ? `step ${progress.checkpoint_step}` : "–");
    this.actions.set(run);
    this.annotations.set(run);
  }

  /** Says that the numbers are not current. */
  showProblem(error) {
    this.problem.classList.remove("hidden");
    this.problem.replaceChildren(...withCode(error.message), " The numbers below are the last that were received.");
  }
}

/** Where the run waits for a trainer, if that is not where all do. */
function queue({ spec }) {
  return spec.queue && spec.queue !== "default" ? ` · queue ${spec.queue}` : "";
}

/** How well the run learns: text by name, the same names for the whole run. */
function scores({ spec, progress }) {
  if (!trainsGiven(spec)) {
    return {
      ...(readsRewards(spec) ? { Reward: fixed(progress.reward) } : {}),
      ...(spec.teacher ? { "KL to teacher": fixed(progress.teacher_kl) } : {}),
      "Held-out": fixed(progress.accuracy),
      Staleness: fixed(progress.staleness, 1),
    };
  }
  const heldOut = spec.data?.eval ? { "Held-out loss": fixed(progress.held_out_loss) } : {};
  return { Loss: fixed(progress.loss), ...(trainsPairs(spec) ? { Accuracy: fixed(progress.pair_accuracy) } : {}), ...heldOut };
}

function detail(run, rates) {
  if (run.state === "running") return pace(run, rates);
  const meaning = stateText(run.state)[1];
  if (!FINAL.has(run.state) || !run.finished_at) return meaning;
  const records = run.deterministic === "given records" ? "; deterministic: given records" : "";
  return `${meaning ? `${meaning}; ` : ""}took ${duration((Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000)}${records}`;
}

function pace(run, rates) {
  if (!rates) return "no step in the last ten seconds";
  const left = (run.steps - run.progress.step) / rates.steps;
  const speed = rates.steps >= 1 ? `${number(rates.steps, 1)} steps per second` : `${duration(1 / rates.steps)} per step`;
  return `${speed}, about ${duration(left)} left`;
}
