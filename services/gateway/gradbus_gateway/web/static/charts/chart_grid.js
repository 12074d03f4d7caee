// The charts of a page with the controls of their view.
import { make } from "../lib/elements.js";
import { SMOOTHINGS } from "./chart_view.js";

const HELP = "Drag across a chart to see fewer steps, click a curve for the samples of that step. By keyboard, in a chart: ← → cursor, + − zoom, Shift ← → move, 0 all steps, Enter samples.";

/** Charts under their controls and `notes`, which follow the window's size, the theme and the view until `signal` is aborted. */
export function chartGrid(charts, view, signal, notes = null) {
  const grid = make("div", { class: "charts" }, ...charts.map((chart) => chart.element));
  const observer = new ResizeObserver(() => charts.forEach((chart) => chart.resize()));
  observer.observe(grid);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.resize(true)), { signal });
  signal.addEventListener("abort", () => {
    observer.disconnect();
    charts.forEach((chart) => chart.destroy());
  });
  view.listen((changed) => charts.forEach((chart) => chart.follow(changed)));
  return make("div", {}, controls(charts, view), notes, grid);
}

function controls(charts, view) {
  const last = () => Math.max(...charts.map(({ whole }) => whole[1]));
  const [from, to] = ["first", "last"].map((end) => make("input", { type: "number", min: 0, placeholder: end, "aria-label": `${end} step shown`, onchange: () => view.change({ zoom: zoomOf(from.value, to.value, last()) }) }));
  const whole = make("button", { onclick: () => view.change({ zoom: null }) }, "All steps");
  const show = () => {
    [from.value, to.value] = fieldsOf(view.zoom, last());
    whole.disabled = !view.zoom;
  };
  view.listen(show);
  show();
  return make(
    "div", { class: "controls chart-controls" },
    make("div", { class: "field" }, make("span", {}, "Steps"), make("span", { class: "row" }, from, to, whole)),
    choice("Smoothing", "smoothing", Object.keys(SMOOTHINGS).map((name) => [name, name]), view),
    choice("Values", "scale", [["linear", "linear"], ["log", "logarithmic"]], view),
    make("p", { class: "soft small" }, HELP),
  );
}

/** The range in two fields; one that is empty stands for that end of all steps. Null if it is no range. */
export function zoomOf(from, to, last) {
  const [first, end] = [Number(from), to === "" ? last : Number(to)];
  return (from !== "" || to !== "") && end > first ? [first, end] : null;
}

/** The reverse: an end of all steps is left empty, so that the other field can be filled in after it. `last` is 0 while it is not known. */
export function fieldsOf(zoom, last) {
  if (!zoom) return ["", ""];
  return [zoom[0] || "", last && zoom[1] >= last ? "" : zoom[1]];
}

function choice(label, name, options, view) {
  return make(
    "label", { class: "field" }, make("span", {}, label),
    make("select", { "aria-label": label, onchange: (event) => view.change({ [name]: event.target.value }) }, ...options.map(([value, text]) => make("option", { value, selected: view[name] === value }, text))));
}
