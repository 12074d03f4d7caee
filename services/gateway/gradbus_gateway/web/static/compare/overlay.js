// The charts of several runs: one for each line that any of their charts has, with a line for each run.
import { joined } from "../charts/curves.js";
import { chartsOf, extent } from "../charts/run_charts.js";

/** [{options, data, look}] for `runs` ({label, spec}); `data` and `look` of the runs' histories (LiveHistory), in the same order, are what `Chart.set` takes. */
export function overlaysOf(runs) {
  const lines = new Map();
  runs.forEach(({ spec }, run) => {
    for (const chart of chartsOf(spec)) {
      for (const [title, at] of linesOf(chart.options)) {
        if (!lines.has(title)) lines.set(title, { chart, sources: runs.map(() => null) });
        lines.get(title).sources[run] = { data: chart.data, at };
      }
    }
  });
  const series = runs.map(({ label }, at) => ({ label, colour: at + 1 }));
  return [...lines].map(([title, { chart, sources }]) => ({
    options: { ...chart.options, explanation: chart.options.ofLine ?? chart.options.explanation, title, series },
    data: (histories) => joined(sources.map((source, run) => source && columnsOf(source, histories[run].shown.drawn))),
    look: (histories) => {
      const weights = joined(sources.map((source, run) => source && weightsOf(histories[run].shown.drawn)));
      return {
        means: joined(sources.map((source, run) => source && columnsOf(source, histories[run].shown.averaged))),
        whole: united(histories.map(({ whole }) => extent(whole.drawn, chart.options.by))),
        spanAt: (run, x) => histories[run].shown.spanAt(chart.options.by, x),
        weightsOf: (run) => weights[run + 1],
      };
    },
  }));
}

/** [title, index into the data] of each line of a chart; edges of a band are none. */
function linesOf({ title, series }) {
  const lines = series.map((line, at) => [line, at + 1]).filter(([{ edge }]) => !edge);
  return lines.map(([{ label }, at]) => [lines.length > 1 ? `${title}: ${label}` : title, at]);
}

const weightsOf = ({ steps, weights }) => [steps, weights];
const united = (extents) => [Math.min(...extents.map(([first]) => first)), Math.max(...extents.map(([, last]) => last))];

function columnsOf({ data, at }, seen) {
  const columns = data(seen);
  return [columns[0], columns[at]];
}
