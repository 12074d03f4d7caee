// Several runs beside each other: their figures, the fields in which their specs differ, and their curves in the same charts.
import { Chart } from "../charts/chart.js";
import { chartGrid } from "../charts/chart_grid.js";
import { ChartView } from "../charts/chart_view.js";
import { fetchJson, poll } from "../lib/api.js";
import { make, setTextWithCode } from "../lib/elements.js";
import { FINAL } from "../lib/format.js";
import { LiveHistory } from "../history/live_history.js";
import { differenceTable, RunTable } from "./tables.js";
import { comparisonOf, idsOf } from "./address.js";
import { overlaysOf } from "./overlay.js";
import { Problems } from "./problems.js";

const PERIOD_SECONDS = 3;

export async function showRunComparison({ root, signal, query, showError }) {
  document.title = "Comparison · Gradbus";
  const ids = idsOf(query);
  const problems = new Problems((error) => showError(error, root));
  const view = new ChartView(query);
  const runs = await readRuns(ids, view, signal, problems);
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
    overlays.forEach(({ data, look }, at) => charts[at].set(data(histories), look(histories)));
    const notices = runs.map(({ run, history }) => history.noticeOf(run.name || run.id)).filter(Boolean);
    rest.classList.toggle("hidden", !notices.length);
    setTextWithCode(rest, notices.join(" "));
  };
  runs.forEach((entry) => {
    entry.history.onChange = show;
  });
  show();
  return Promise.all([offering, ...runs.map((entry) => follow(entry, signal, problems))]);
}

/** [{run, history}] of the runs that can be read; of the others, `problems` tells. */
async function readRuns(ids, view, signal, problems) {
  const read = await Promise.all(ids.map((id) => fetchJson(`/v1/runs/${id}`, { signal }).catch((error) => {
    if (error.name === "AbortError") throw error;
    problems.set(id, error);
    return null;
  })));
  return read.filter(Boolean).map((run) => ({ run, history: new LiveHistory(run.id, view, signal, () => {}) }));
}

/** Reads a run's history until it is over and all is read. Its state is read first, so that those of its last steps are read after its end. */
function follow(entry, signal, problems) {
  const { id } = entry.run;
  return poll(`/v1/runs/${id}`, PERIOD_SECONDS, signal, async (run) => {
    entry.run = run;
    await entry.history.update();
    problems.set(id, null);
    return !FINAL.has(run.state);
  }, (error) => problems.set(id, error));
}
