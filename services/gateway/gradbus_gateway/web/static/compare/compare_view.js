// Several runs beside each other: their figures, the fields in which their specs differ, and their curves in the same charts.
import { Chart } from "../charts/chart.js";
import { chartGrid } from "../charts/chart_grid.js";
import { ChartView } from "../charts/chart_view.js";
import { fetchJson, poll } from "../lib/api.js";
import { make, setText } from "../lib/elements.js";
import { FINAL } from "../lib/format.js";
import { loadHistory } from "../run/event_stream.js";
import { RunHistory } from "../run/run_history.js";
import { differenceTable, RunTable } from "./tables.js";
import { comparisonOf, idsOf } from "./address.js";
import { overlaysOf } from "./overlay.js";
import { Problems } from "./problems.js";

const PERIOD_SECONDS = 3;

export async function showRunComparison({ root, signal, query, showError }) {
  document.title = "Comparison · Gradbus";
  const ids = idsOf(query);
  const problems = new Problems((error) => showError(error, root));
  const runs = await readRuns(ids, signal, problems);
  const view = new ChartView(query);
  const open = (changed) => {
    location.hash = comparisonOf(changed, view.parameters());
  };
  const table = new RunTable(runs.map(({ run }) => run), open);
  root.append(make("div", { class: "view-head" }, make("h1", {}, "Comparison of runs"), make("a", { href: "#/" }, "All runs")), problems.element, table.element);
  const offering = table.offer(signal);
  if (!runs.length) return offering;
  const overlays = overlaysOf(runs.map(({ run }) => ({ label: run.name || run.id, spec: run.spec })));
  const charts = overlays.map(({ options }) => new Chart(options, view, (step, line) => {
    location.hash = `#/runs/${runs[line].run.id}/samples?steps=${step}`;
  }));
  const rest = make("p", { class: "note warn hidden", role: "status" });
  root.append(differenceTable(runs.map(({ run }) => run)), make("h2", { class: "over-charts" }, "Charts"), rest, chartGrid(charts, view, signal));
  view.listen(() => history.replaceState(null, "", comparisonOf(runs.map(({ run }) => run.id), view.parameters())));
  const show = () => {
    if (signal.aborted) return;
    table.set(runs.map(({ run }) => run));
    const histories = runs.map(({ history }) => history);
    charts.forEach((chart, at) => chart.set(overlays[at].data(histories)));
    const cut = runs.filter(({ isWhole }) => !isWhole);
    rest.classList.toggle("hidden", !cut.length);
    setText(rest, cut.map(cutText).join(" "));
  };
  show();
  return Promise.all([offering, ...runs.map((entry) => follow(entry, signal, show, problems))]);
}

/** What is said of a run of whose events a part is read. */
const cutText = ({ run, history }) => `The curves of ${run.name || run.id} end at step ${history.steps.at(-1) ?? 0}, because it has many events: the rest is being read.`;

/** [{run, history, isWhole}] of the runs that can be read, `isWhole` until events are known to be missing; of the others, `problems` tells. */
async function readRuns(ids, signal, problems) {
  const read = await Promise.all(ids.map((id) => fetchJson(`/v1/runs/${id}`, { signal }).catch((error) => {
    if (error.name === "AbortError") throw error;
    problems.set(id, error);
    return null;
  })));
  return read.filter(Boolean).map((run) => ({ run, history: new RunHistory(), isWhole: true }));
}

/** Reads a run's events until it is over and all are read. Its state is read first, so that those of its last steps are read after its end. */
function follow(entry, signal, onChange, problems) {
  const { id } = entry.run;
  return poll(`/v1/runs/${id}`, PERIOD_SECONDS, signal, async (run) => {
    entry.run = run;
    entry.isWhole = await loadHistory(id, entry.history, signal);
    problems.set(id, null);
    onChange();
    return !(entry.isWhole && FINAL.has(run.state));
  }, (error) => problems.set(id, error));
}
