// What the comparison shows, and the controls that change it. The selection is kept in the address.
import { make } from "../lib/elements.js";
import { hasFixedSteps, readsRewards, trainsGiven } from "../lib/run_kind.js";

const MAX_STEPS = 4;
const MAX_SEARCH_CHARACTERS = 200;
const VERDICTS = [["", "any"], ["train", "trained"], ["filtered", "filtered"], ["dropped", "dropped"]];

/** Whether the samples of a step can be ordered by reward. */
const isRanked = (run) => hasFixedSteps(run.spec) && readsRewards(run.spec);

/** What may be shown of a run. */
const shows = (run) => [["prompt", "one prompt, all its samples"], ...(isRanked(run) ? [["low", "lowest rewards of the step"], ["high", "highest rewards of the step"]] : []), ["search", "a search of all samples"]];

/** The selection in the address's query; by default the first, the last and two steps between. */
export function selectionOf(query, run) {
  const last = Math.max(0, run.progress.step - 1);
  const given = (query.get("steps") ?? "").split(",").filter((part) => /^\d+$/.test(part)).map(Number);
  const evenly = [0, Math.round(last / 3), Math.round((2 * last) / 3), last];
  return {
    steps: given.length ? given.slice(0, MAX_STEPS) : [...new Set(evenly)],
    at: Number(query.get("at")) || 0,
    show: shows(run).some(([name]) => name === query.get("show")) ? query.get("show") : "prompt",
    text: (query.get("text") ?? "").slice(0, MAX_SEARCH_CHARACTERS),
    from: /^[\d.-]{1,60}$/.test(query.get("from") ?? "") ? query.get("from") : "",
    verdict: VERDICTS.some(([name]) => name === query.get("verdict")) ? query.get("verdict") : "",
    colour: trainsGiven(run.spec) ? "" : query.get("colour") ?? "",
    row: query.has("row") ? Number(query.get("row")) : null,
  };
}

/** The reverse of `selectionOf`. */
export function queryOf({ steps, at, show, colour, row, text, verdict, from }) {
  const parts = row !== null ? { row } : show === "search" ? { show, text, verdict, ...(from && { from }) } : { steps: steps.join(","), at, show };
  return new URLSearchParams(colour ? { ...parts, colour } : parts);
}

/** The controls of a selection; `update` is called with the fields that change. */
export function controls(run, selection, update) {
  const choice = (label, name, options) =>
    make("label", { class: "field" }, make("span", {}, label), make("select", { "aria-label": label, onchange: (event) => update({ [name]: event.target.value }) }, ...options.map(([value, text]) => make("option", { value, selected: selection[name] === value }, text))));
  // Given responses have neither probabilities nor advantages.
  const colour = !trainsGiven(run.spec) && choice("Colour", "colour", [["", "none"], ["probability", "token probability"], ["advantage", "advantage"]]);
  if (selection.row !== null) {
    return make("div", { class: "controls" }, make("p", {}, `Row ${selection.row} of the dataset, every group. `, make("button", { class: "plain", onclick: () => update({ row: null }) }, "Back to steps")), colour);
  }
  return make(
    "div", { class: "controls" },
    selection.show !== "search" && stepFields(run, selection, update),
    choice("Show", "show", shows(run)),
    selection.show === "prompt" && groupField(run, selection, update),
    selection.show === "search" && searchField(selection, update),
    selection.show === "search" && choice("Groups", "verdict", VERDICTS), colour,
  );
}

function stepFields(run, selection, update) {
  const fields = selection.steps.map((step, at) =>
    make("input", { type: "number", min: 0, max: Math.max(0, run.steps - 1), value: step, "aria-label": `step of column ${at + 1}`, onchange: (event) => update({ steps: selection.steps.with(at, Math.max(0, Number(event.target.value) || 0)) }) }));
  return make("div", { class: "field" }, make("span", {}, hasFixedSteps(run.spec) ? "Steps" : "Steps, about"), make("span", { class: "row steps" }, ...fields));
}

function searchField(selection, update) {
  return make(
    "label", { class: "field" }, make("span", {}, "Text in prompt, response or reason"),
    make("input", { type: "search", maxlength: MAX_SEARCH_CHARACTERS, value: selection.text, "aria-label": "text to search for", onchange: (event) => update({ text: event.target.value }) }));
}

function groupField(run, selection, update) {
  const width = run.spec.schedule.groups_per_step;
  const move = (by) => update({ at: (selection.at + by + width) % width });
  return make(
    "div", { class: "field" }, make("span", {}, hasFixedSteps(run.spec) ? `Group of the step, 1 to ${width}` : `Group, 1 to ${width}`),
    make("span", { class: "row" },
      make("button", { "aria-label": "previous group", onclick: () => move(-1) }, "‹"),
      make("input", { type: "number", min: 1, max: width, value: selection.at + 1, "aria-label": "group of the step", onchange: (event) => update({ at: Math.min(width, Math.max(1, Number(event.target.value) || 1)) - 1 }) }),
      make("button", { "aria-label": "next group", onclick: () => move(1) }, "›")));
}
