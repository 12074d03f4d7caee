// Several runs beside each other: their figures, the fields in which their specs differ, and their curves in the same charts.
import { Chart } from "../charts/chart.js";
import { chartGrid } from "../charts/chart_grid.js";
import { ChartView } from "../charts/chart_view.js";
import { fetchJson, poll } from "../lib/api.js";
import { make, withCode } from "../lib/elements.js";
import { FINAL } from "../lib/format.js";
import { loadHistory } from "../run/event_stream.js";
import { RunHistory } from "../run/run_history.js";
import { differenceTable, RunTable } from "./tables.js";
import { comparisonOf, idsOf } from "./address.js";
import { overlaysOf } from "./overlay.js";

const PERIOD_SECONDS = 3;

export async function showRunComparison({ root, signal, query, showError }) {
  document.title = "Comparison · Gradbus";
  const ids = idsOf(query);
  const problem = make("p", { class: "note bad hidden", role: "alert" });
  const onError = (error) => {
    if (error.status === 401) return showError(error, root);
    problem.classList.remove("hidden");
    problem.replaceChildren(...withCode(error.message));
  };
  const runs = await readRuns(ids, signal, onError);
  const view = new ChartView(query);
  const open = (changed) => {
    location.hash = comparisonOf(changed, view.parameters());
  };
  const table = new RunTable(runs.map(({ run }) => run), open);
  root.append(make("div", { class: "view-head" }, make("h1", {}, "Comparison of runs"), make("a", { href: "#/" }, "All runs")), problem, table.element);
  const offering = table.offer(signal);
  if (!runs.length) return offering;
  const overlays = overlaysOf(runs.map(({ run }) => ({ label: run.name || run.id, spec: run.spec })));
  const charts = overlays.map(({ options }) => new Chart(options, view, (step, line) => {
    location.hash = `#/runs/${runs[line].run.id}/samples?steps=${step}`;
  }));
  root.append(differenceTable(runs.map(({ run }) => run)), make("h2", { class: "over-charts" }, "Charts"), chartGrid(charts, view, signal));
  view.listen(() => history.replaceState(null, "", comparisonOf(runs.map(({ run }) => run.id), view.parameters())));
  const show = () => {
    if (signal.aborted) return;
    table.set(runs.map(({ run }) => run));
    const histories = runs.map(({ history }) => history);
    charts.forEach((chart, at) => chart.set(overlays[at].data(histories)));
  };
  show();
  return Promise.all([offering, ...runs.map((entry) => follow(entry, signal, show, onError))]);
}

/** [{run, history}] of the runs that can be read; the others are told to `onError`. */
async function readRuns(ids, signal, onError) {
  const read = await Promise.all(ids.map((id) => fetchJson(`/v1/runs/${id}`, { signal }).catch((error) => {
    if (error.name === "AbortError") throw error;
    onError(error);
    return null;
  })));
  return read.filter(Boolean).map((run) => ({ run, history: new RunHistory() }));
}

/** Reads a run's events, and goes on with it until it is over. */
async function follow(entry, signal, onChange, onError) {
  let reading = null;
  const read = () => {
    reading ??= loadHistory(entry.run.id, entry.history, signal).then(onChange, (error) => (error.name === "AbortError" ? null : onError(error))).finally(() => {
      reading = null;
    });
    return reading;
  };
  await read();
  if (FINAL.has(entry.run.state)) return;
  await poll(`/v1/runs/${entry.run.id}`, PERIOD_SECONDS, signal, (run) => {
    entry.run = run;
    read();
    return !FINAL.has(run.state);
  }, onError);
}
