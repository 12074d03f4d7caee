// One run, live.
import { ask, poll } from "./api.js";
import { Busy, sharesOf } from "./busy.js";
import { chartGrid } from "./charts.js";
import { Curves } from "./curves.js";
import { make, prose, setText } from "./elements.js";
import { follow, historyOf } from "./history.js";
import { Loop } from "./loop.js";
import { picture } from "./picture.js";
import { TimeShares } from "./time.js";
import { Told } from "./told.js";
import { age, duration, FINAL, fixed, number, stateClass, stateWords } from "./words.js";
import { wishes } from "./wishes.js";
import { Workers } from "./workers.js";

export async function showRun(context, runId) {
  const { root, signal, fail } = context;
  let run = await ask(`/v1/runs/${runId}`, { signal });
  let live = [];
  const busy = new Busy();
  document.title = `${run.name || run.id} · Gradbus`;
  const history = historyOf(runId);
  const head = new Head(context, run, (answer) => update(answer));
  const [loop, time, workers, told, curves] = [new Loop(), new TimeShares(), new Workers(), new Told(), new Curves(run.spec.evaluation.metric)];
  root.append(
    head.element, told.alarms, loop.element,
    make("div", { class: "panels" }, time.element, workers.element),
    make("h2", { class: "over-charts" }, "Curves"), chartGrid(curves.all, signal),
    make("div", { class: "panels" }, told.element, spec(run)),
  );

  const isOver = () => FINAL.has(run.state);
  const refresh = () => {
    head.set(run, history);
    const shares = sharesOf(run, history, live);
    loop.set(picture(run, history, live, shares));
    time.set(shares);
    workers.set(live, run.progress.version, shares);
    told.set(history, isOver());
  };
  const update = (answer) => {
    run = { ...answer, spec: answer.spec ?? run.spec };
    refresh();
  };
  refresh();
  curves.set(history);
  follow(runId, history, signal, () => {
    curves.set(history);
    refresh();
  }, isOver);
  const lost = (error) => (error.status === 401 ? fail(error, root) : head.lost(error));
  poll("/v1/workers?limit=1000", 1, signal, (page) => {
    live = busy.mean(page.data.filter((worker) => worker.run_id === runId));
    refresh();
    return !isOver();
  }, () => {});
  await poll(`/v1/runs/${runId}`, 1, signal, (answer) => {
    update(answer);
    return !isOver();
  }, lost);
}

/** Name, state, progress, figures and buttons. */
class Head {
  constructor(context, run, changed) {
    this.chip = make("span");
    this.means = make("span", { class: "soft" });
    this.done = make("progress", { "aria-label": "steps done" });
    this.trouble = make("p", { class: "note bad hidden", role: "alert" });
    this.why = make("p", { class: "note warn hidden", role: "status" });
    this.figures = Object.fromEntries(["Step", "Reward", "Held-out", "Staleness", "Speed", "Checkpoint"].map((name) => [name, make("dd", { class: "num" }, "–")]));
    this.buttons = wishes(context, run, changed);
    this.element = make(
      "header", { class: "run-head" },
      make("div", { class: "page-head" }, make("div", {}, make("h1", {}, run.name || run.id), make("p", { class: "soft small" }, make("span", { class: "mono" }, run.id), ` · ${age(run.created_at)}`)), this.buttons.element),
      make("p", { class: "state-line" }, this.chip, " ", this.means),
      this.done, this.why, this.trouble,
      make("div", { class: "figures-row" }, make("dl", { class: "figures" }, ...Object.entries(this.figures).map(([name, value]) => make("div", {}, make("dt", {}, name), value))), make("a", { class: "to-samples", href: `#/runs/${run.id}/samples` }, "Samples side by side")),
    );
  }

  set(run, history) {
    const { progress } = run;
    const rates = history.rates(FINAL.has(run.state));
    const [name, meaning] = stateWords(run.state);
    this.chip.className = stateClass(run.state);
    setText(this.chip, name);
    setText(this.means, run.state === "running" ? pace(run, rates) : FINAL.has(run.state) && run.finished_at ? `${meaning ? `${meaning}; ` : ""}took ${duration((Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000)}` : meaning);
    this.done.max = run.steps;
    this.done.value = progress.step;
    const why = run.waiting_for ? `Waits for ${run.waiting_for}` : run.reason;
    this.why.classList.toggle("hidden", !why);
    setText(this.why, why);
    this.trouble.classList.add("hidden");
    setText(this.figures.Step, `${progress.step} of ${run.steps}`);
    setText(this.figures.Reward, fixed(progress.reward));
    setText(this.figures["Held-out"], fixed(progress.accuracy));
    setText(this.figures.Staleness, fixed(progress.staleness, 1));
    setText(this.figures.Speed, rates ? `${number(rates.tokens, 0)} tok/s` : "–");
    setText(this.figures.Checkpoint, progress.checkpoint_step > 0 ? `step ${progress.checkpoint_step}` : "–");
    this.buttons.set(run);
  }

  lost(error) {
    this.trouble.classList.remove("hidden");
    this.trouble.replaceChildren(...prose(error.message), " What is shown is what was last heard.");
  }
}

function pace(run, rates) {
  if (!rates) return "no step yet in the last ten seconds";
  const left = (run.steps - run.progress.step) / rates.steps;
  const speed = rates.steps >= 1 ? `${number(rates.steps, 1)} steps a second` : `a step takes ${duration(1 / rates.steps)}`;
  return `${speed}, about ${duration(left)} left`;
}

function spec(run) {
  return make("section", { class: "panel" }, make("details", {}, make("summary", {}, "The spec, whole"), make("pre", { class: "spec" }, JSON.stringify(run.spec, null, 2))));
}
