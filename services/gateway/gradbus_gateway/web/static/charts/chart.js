// Line charts over steps, drawn by uPlot. The charts of a grid share their cursor.
import { make, setText } from "../lib/elements.js";
import { number } from "../lib/format.js";

const HEIGHT = 132;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The range of the value axis, with room above and below a constant line. */
function valueRange(_, low, high) {
  if (low === null) return [0, 1];
  return low === high ? [Math.min(0, low), high > 0 ? high * 1.5 : 1] : uPlot.rangeNum(low, high, 0.08, true);
}

/** The exponential mean of `values`, over about a fiftieth of them. */
function smoothed(values) {
  const weight = Math.min(1, 100 / (values.length + 1));
  let mean = null;
  return values.map((value) => {
    if (value !== null && value !== undefined) mean = mean === null ? value : mean + weight * (value - mean);
    return mean;
  });
}

/** A chart with a title, the newest value and a line of explanation. `series`: [{label, colour?, edge?}]; two edges make a band. */
export class Chart {
  #plot = null;
  #data = null;

  constructor({ title, explanation, series, format = number, points = false, smooth = false }) {
    Object.assign(this, { title, series, format, points, smooth });
    this.value = make("span", { class: "chart-value num" }, "–");
    this.canvas = make("div", { class: "chart-canvas" });
    this.element = make(
      "figure", { class: "chart", role: "group", "aria-label": title },
      make("figcaption", {}, make("span", { class: "chart-title" }, title), this.value, make("span", { class: "chart-explanation" }, explanation)),
      this.canvas,
    );
    this.#showValue();
  }

  /** `data`: [steps, ...series]; a series has null where there is no value. */
  set(data) {
    const steps = data[0];
    this.#data = this.smooth ? [...data, ...this.#lines().map((at) => smoothed(data[at]))] : data;
    this.canvas.classList.toggle("bare", steps.length === 0);
    this.canvas.dataset.points = steps.length;
    if (!this.#plot && this.canvas.clientWidth) this.#create();
    else this.#plot?.setData(this.#data);
    this.#showValue();
  }

  /** Fits the chart to its container; `redraw` draws it again, in the colours of another theme. */
  resize(redraw = false) {
    if (redraw && this.#plot) {
      this.#plot.destroy();
      this.#plot = null;
    }
    if (!this.#plot) {
      if (this.#data && this.canvas.clientWidth) this.#create();
    } else if (this.#plot.width !== this.canvas.clientWidth) this.#plot.setSize({ width: this.canvas.clientWidth, height: HEIGHT });
  }

  /** Indexes into the data of the series that are lines, not edges of a band. */
  #lines() {
    return this.series.map(({ edge }, at) => (edge ? 0 : at + 1)).filter(Boolean);
  }

  destroy() {
    this.#plot?.destroy();
  }

  #create() {
    const grid = { stroke: style("--line"), width: 1 };
    const axis = { stroke: style("--soft"), font: `11px ${style("--sans")}`, grid, ticks: { show: false }, gap: 4 };
    const line = ({ label, colour = 1, edge }, faint) => ({
      label,
      stroke: edge ? "transparent" : style(`--line-${colour}${faint ? "-faint" : ""}`),
      width: edge ? 0 : faint ? 1 : 1.6,
      points: { show: this.points && !edge, size: 5, fill: style(`--line-${colour}`) },
      spanGaps: true,
    });
    const lines = this.series.map((series) => line(series, this.smooth));
    if (this.smooth) lines.push(...this.#lines().map((at) => line(this.series[at - 1], false)));
    const edges = this.series.map(({ edge }, at) => (edge ? at + 1 : 0)).filter(Boolean);
    this.#plot = new uPlot(
      {
        width: this.canvas.clientWidth,
        height: HEIGHT,
        padding: [6, 14, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: "steps" }, points: { size: 6 } },
        scales: { x: { time: false }, y: { range: valueRange } },
        axes: [
          { ...axis, size: 22, space: 60, grid: { show: false }, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) },
          { ...axis, size: 46, space: 34, values: (_, ticks) => ticks.map((tick) => number(tick)) },
        ],
        series: [{ label: "step" }, ...lines],
        bands: edges.length === 2 ? [{ series: [edges[0], edges[1]], fill: style("--band") }] : [],
        hooks: { setCursor: [(plot) => this.#showValue(plot.cursor.idx)] },
      },
      this.#data,
      this.canvas,
    );
  }

  /** Shows the value under the cursor, else the newest. */
  #showValue(at = null) {
    const data = this.#data;
    const valueOf = (index) => {
      const values = data?.[index] ?? [];
      const value = at !== null && at !== undefined ? values[at] : values.findLast((found) => found !== null && found !== undefined);
      return this.format(value);
    };
    const text = this.#lines().map(valueOf).join(" / ");
    setText(this.value, at !== null && at !== undefined && data ? `${text} · step ${data[0][at]}` : text);
  }
}

/** A grid of charts that follow the window's size and the theme until `signal` is aborted. */
export function chartGrid(charts, signal) {
  const grid = make("div", { class: "charts" }, ...charts.map((chart) => chart.element));
  const observer = new ResizeObserver(() => charts.forEach((chart) => chart.resize()));
  observer.observe(grid);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.resize(true)), { signal });
  signal.addEventListener("abort", () => {
    observer.disconnect();
    charts.forEach((chart) => chart.destroy());
  });
  return grid;
}
