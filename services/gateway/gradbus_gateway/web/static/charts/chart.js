// Line charts over steps, drawn by uPlot. The charts of a page share their cursor and their view.
import { make, setText } from "../lib/elements.js";
import { number } from "../lib/format.js";
import { moved, SMOOTHINGS, zoomed } from "./chart_view.js";
import { nearest, positive, smoothed } from "./curves.js";

const HEIGHT = 132;
const FAINT = "55";
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const known = (value) => value !== null && value !== undefined;

/** The range of the value axis, with room above and below a constant line. */
function valueRange(_, low, high) {
  if (low === null) return [0, 1];
  return low === high ? [Math.min(0, low), high > 0 ? high * 1.5 : 1] : uPlot.rangeNum(low, high, 0.08, true);
}

const logRange = (_, low, high) => (low === null ? [0.1, 1] : uPlot.rangeLog(low, high, 10, false));

/**
 * A chart with a title, the newest value and a line of explanation. `series`: [{label, colour?, edge?}]; two edges make a band.
 * `by` says what stands on its x axis: "step" or "version", as there are samples of steps alone.
 * `hasExtremes` says that the two points of a bucket are its smallest and its largest value; else the later one is its value.
 */
export class Chart {
  #plot = null;
  /** As given, as drawn, and how it is looked at. */
  #given = null;
  #data = null;
  #look = null;
  #marks = [];

  /** `onStep(step, line)` is called for a step that was chosen on a line. */
  constructor({ title, explanation, series, format = number, points = false, smooth = false, by = "step", hasExtremes = true }, view, onStep) {
    Object.assign(this, { title, series, format, points, smooth, by, hasExtremes, view, onStep });
    this.value = make("span", { class: "chart-value num" }, "–");
    this.canvas = make("div", { class: "chart-canvas" });
    this.element = make(
      "figure", { class: "chart", role: "group", "aria-label": title, tabindex: 0, onkeydown: (event) => this.key(event), onfocus: () => this.value.setAttribute("aria-live", "polite"), onblur: () => this.value.setAttribute("aria-live", "off") },
      make("figcaption", {}, make("span", { class: "chart-title" }, title), this.value, make("span", { class: "chart-explanation" }, explanation)),
      this.canvas,
    );
    // uPlot lets no click through that ends a drag.
    this.canvas.addEventListener("click", () => this.#choose(null));
    this.#showValue();
  }

  /**
   * `data`: [steps, ...series]; a series has null where there is no value. Of a curve with buckets of steps `means` are smoothed, and
   * `spanAt(line, step)` is the first and the last step of a point, and `weightsOf(line)` how many steps each point stands for.
   * `whole` is the first and the last step that there are.
   */
  set(data, { means = data, whole = [data[0][0] ?? 0, data[0].at(-1) ?? 0], spanAt = (_, step) => [step, step], weightsOf = () => undefined } = {}) {
    this.#given = data;
    this.#look = { means, whole, spanAt, weightsOf };
    this.#data = this.#drawn();
    this.canvas.classList.toggle("bare", data[0].length === 0);
    this.canvas.dataset.points = data[0].length;
    if (!this.#plot && this.canvas.clientWidth) this.#create();
    else this.#plot?.setData(this.#data);
    this.#showValue(this.#plot?.cursor.idx);
  }

  /** Steps to mark by a vertical line. */
  mark(steps) {
    if (`${steps}` === `${this.#marks}`) return;
    this.#marks = steps;
    this.#plot?.redraw();
  }

  /** Draws what the view shows now. */
  follow(changed) {
    if (!this.#given) return;
    this.#data = this.#drawn();
    if (changed.includes("scale") || changed.includes("smoothing")) this.resize(true);
    else this.#plot?.setData(this.#data);
    this.#showValue(this.#plot?.cursor.idx);
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

  destroy() {
    this.#plot?.destroy();
  }

  /** Over which part of the data lines are smoothed; null if they are not. */
  get #part() {
    return this.smooth ? SMOOTHINGS[this.view.smoothing] : null;
  }

  /** Indexes into the data of the series that are lines, not edges of a band. */
  #lines() {
    return this.series.map(({ edge }, at) => (edge ? 0 : at + 1)).filter(Boolean);
  }

  #drawn() {
    const data = this.view.scale === "log" ? positive(this.#given) : this.#given;
    const means = this.view.scale === "log" ? positive(this.#look.means) : this.#look.means;
    return this.#part ? [...data, ...this.#lines().map((at, line) => smoothed(means[at], this.#part, this.#look.weightsOf(line)))] : data;
  }

  #create() {
    const grid = { stroke: style("--line"), width: 1 };
    const axis = { stroke: style("--soft"), font: `11px ${style("--sans")}`, grid, ticks: { show: false }, gap: 4 };
    const isLog = this.view.scale === "log";
    this.#plot = new uPlot(
      {
        width: this.canvas.clientWidth,
        height: HEIGHT,
        padding: [6, 14, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "steps", filters: { pub: (type) => type === "mousemove" } }, points: { size: 6 } },
        scales: { x: { time: false, range: (_, low, high) => this.view.zoom ?? [low, high] }, y: isLog ? { distr: 3, range: logRange } : { range: valueRange } },
        axes: [
          { ...axis, size: 22, space: 60, grid: { show: false }, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) },
          { ...axis, size: 46, space: 34, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
        ],
        series: [{ label: "step" }, ...this.#strokes()],
        bands: this.#bands(),
        hooks: { setCursor: [(plot) => this.#showValue(plot.cursor.idx)], setSelect: [(plot) => this.#brush(plot)], draw: [(plot) => this.#drawMarks(plot)] },
      },
      this.#data,
      this.canvas,
    );
  }

  #strokes() {
    const line = ({ label, colour = 1, edge }, faint) => ({
      label,
      stroke: edge ? "transparent" : style(`--line-${colour}`) + (faint ? FAINT : ""),
      width: edge ? 0 : faint ? 1 : 1.6,
      points: { show: this.points && !edge, size: 5, fill: style(`--line-${colour}`) },
      spanGaps: true,
    });
    const isSmooth = this.#part !== null;
    const means = isSmooth ? this.#lines().map((at) => line(this.series[at - 1], false)) : [];
    return [...this.series.map((series) => line(series, isSmooth)), ...means];
  }

  #bands() {
    const edges = this.series.map(({ edge }, at) => (edge ? at + 1 : 0)).filter(Boolean);
    return edges.length === 2 ? [{ series: [edges[0], edges[1]], fill: style("--band") }] : [];
  }

  #drawMarks({ ctx, bbox, valToPos, scales }) {
    ctx.save();
    ctx.strokeStyle = style("--warn");
    ctx.setLineDash([4, 4]);
    for (const step of this.#marks) {
      if (step < scales.x.min || step > scales.x.max) continue;
      const left = Math.round(valToPos(step, "x", true));
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  #brush(plot) {
    const { left, width } = plot.select;
    if (width <= 0) return;
    const [from, to] = [left, left + width].map((at) => Math.round(plot.posToVal(at, "x")));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to > from) this.view.change({ zoom: [from, to] });
  }

  /** The first and the last step that there are; [0, 0] before the first. */
  get whole() {
    return this.#look?.whole ?? [0, 0];
  }

  /** Zooms, moves the cursor and leads to samples. */
  key(event) {
    if (!this.#given?.[0].length || event.ctrlKey || event.metaKey || event.altKey) return;
    const { whole } = this;
    const shown = this.view.zoom ?? whole;
    const steps = this.#given[0];
    const at = this.#plot?.cursor.idx ?? null;
    const key = event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key;
    const to = moved(key, steps, shown, at);
    const zoom = zoomed(key, shown, whole, at === null ? (shown[0] + shown[1]) / 2 : steps[at]);
    if (to !== undefined) this.#plot?.setCursor({ left: this.#plot.valToPos(steps[to], "x"), top: 0 }, true, true);
    else if (zoom !== undefined) this.view.change({ zoom });
    else if (key === "Enter" || (key >= "1" && key <= String(this.#lines().length))) this.#choose(key === "Enter" ? 0 : Number(key) - 1);
    else return;
    event.preventDefault();
  }

  /** Chooses the cursor's step on a line; `line` null is the one that is nearest to the cursor. */
  #choose(line) {
    const at = this.#plot?.cursor.idx;
    if (!this.onStep || this.by !== "step" || !known(at)) return;
    const lines = this.#lines().map((index) => this.#given[index]);
    const chosen = line ?? nearest(lines, at, this.#plot.posToVal(this.#plot.cursor.top, "y"));
    if (chosen >= 0) this.onStep(this.#given[0][at], chosen);
  }

  /** Shows the value under the cursor, of a bucket the smallest and the largest; else the newest that the view shows. */
  #showValue(at = null) {
    const data = this.#given;
    if (!known(at) || !data) {
      const [from, to] = this.view.zoom ?? [-Infinity, Infinity];
      const isNewest = (value, index) => known(value) && data[0][index] >= from && data[0][index] <= to;
      setText(this.value, this.#lines().map((index) => this.format((data?.[index] ?? []).findLast(isNewest))).join(" / "));
      return;
    }
    const spans = this.#lines().map((_, line) => this.#look.spanAt(line, data[0][at]));
    const text = this.#lines().map((index, line) => this.#valueOf(data[index], at, spans[line])).join(" / ");
    const [first, last] = [Math.min(...spans.map(([from]) => from)), Math.max(...spans.map(([, to]) => to))];
    setText(this.value, `${text} · ${this.by} ${first === last ? first : `${first} to ${last}`}`);
  }

  /** The value at an index; of a bucket, which has a point at each of its ends, those. */
  #valueOf(values, at, span) {
    const [steps] = this.#given;
    const drawn = this.hasExtremes ? span : span.slice(1);
    const ends = (span[0] === span[1] ? [values[at]] : drawn.map((step) => values[steps.indexOf(step)])).filter(known);
    const [low, high] = ends.length ? [Math.min(...ends), Math.max(...ends)].map((end) => this.format(end)) : [this.format(null)];
    return high === undefined || low === high ? low : `${low} to ${high}`;
  }
}
