// One run, live: header, alarms, system diagram, time breakdown, workers, lineage, charts, events, spec.
import { chartGrid } from "../charts/chart_grid.js";
import { addressOf, ChartView } from "../charts/chart_view.js";
import { Marks, scorerMarks } from "../charts/marks.js";
import { RunCharts } from "../charts/run_charts.js";
import { ScorerTurns } from "../charts/scorer_turns.js";
import { fetchJson, poll } from "../lib/api.js";
import { make, setTextWithCode } from "../lib/elements.js";
import { FINAL } from "../lib/format.js";
import { diagramState } from "./diagram_state.js";
import { followEvents } from "../history/event_stream.js";
import { EventList } from "./events.js";
import { LineagePanel } from "./lineage.js";
import { LiveHistory } from "../history/live_history.js";
import { RunHeader } from "./run_header.js";
import { SystemDiagram } from "./system_diagram.js";
import { TimeBreakdown } from "./time_breakdown.js";
import { MeanUtilization, timeShares } from "./utilization.js";
import { WorkerTable } from "./workers.js";

export async function showRun(context, runId) {
  const { root, signal, query, showError } = context;
  let run = await fetchJson(`/v1/runs/${runId}`, { signal });
  let workers = [];
  const utilization = new MeanUtilization();
  document.title = `${run.name || run.id} · Gradbus`;
  const header = new RunHeader(context, run, (changed) => update(changed));
  const view = new ChartView(query);
  const [diagram, breakdown, table, events] = [new SystemDiagram(), new TimeBreakdown(), new WorkerTable(), new EventList()];
  const charts = new RunCharts(run.spec, view, (step) => {
    location.hash = `#/runs/${runId}/samples?steps=${step}`;
  });
  const rest = make("p", { class: "note warn hidden", role: "status" });
  const [lineage, marks] = [new LineagePanel(), new Marks(charts.all)];
  view.listen(() => globalThis.history.replaceState(null, "", addressOf(`/runs/${runId}`, view.parameters())));
  root.append(
    header.element, events.alarms, diagram.element,
    make("div", { class: "panels" }, breakdown.element, table.element), lineage.element,
    make("h2", { class: "over-charts" }, "Charts"), rest, chartGrid(charts.all, view, signal, marks.element),
    make("div", { class: "panels" }, events.element, specPanel(run)),
  );
  const history = new LiveHistory(runId, view, signal, () => {
    charts.set(history);
    const notice = history.noticeOf(run.name || run.id);
    rest.classList.toggle("hidden", !notice);
    setTextWithCode(rest, notice);
    refresh();
  });
  lineage.follow(runId, signal);
  const turns = new ScorerTurns(run, signal);

  const isOver = () => FINAL.has(run.state);
  const refresh = () => {
    const { whole } = history;
    header.set(run, whole);
    const shares = timeShares(run, whole, workers);
    diagram.set(diagramState(run, whole, workers, shares));
    breakdown.set(shares, isOver());
    table.set(workers, run.progress.version, shares);
    events.set(whole, isOver(), run.reason);
    turns.read(whole).then((found) => marks.set(scorerMarks(run.spec, found, whole)));
  };
  const update = (changed) => {
    run = { ...changed, spec: changed.spec ?? run.spec };
    refresh();
  };
  refresh();
  charts.set(history);
  history.read().then(() => signal.aborted || followEvents(runId, history, signal, history.onChange, isOver));
  poll(`/v1/workers?run=${runId}&limit=1000`, 1, signal, (page) => {
    workers = utilization.mean(page.data);
    refresh();
    return !isOver();
  }, () => {});
  await poll(`/v1/runs/${runId}`, 1, signal, (changed) => {
    update(changed);
    return !isOver();
  }, (error) => (error.status === 401 ? showError(error, root) : header.showProblem(error)));
}

function specPanel(run) {
  return make("section", { class: "panel" }, make("details", {}, make("summary", {}, "Run spec"), make("pre", { class: "spec" }, JSON.stringify(run.spec, null, 2))));
}
