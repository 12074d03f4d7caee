// The tables of a comparison: the runs with their figures, and the fields of their specs that differ.
import { fetchJson } from "../lib/api.js";
import { make, setText } from "../lib/elements.js";
import { fixed, stateClass, stateText } from "../lib/format.js";
import { trainsGiven } from "../lib/run_kind.js";
import { MOST_RUNS } from "./address.js";
import { differences } from "./spec_difference.js";

const OFFERED = 100;

/** The runs of a comparison; one can be added and each can be taken out, by `open`, which is called with the ids that are left. */
export class RunTable {
  constructor(runs, open) {
    this.open = open;
    this.ids = runs.map(({ id }) => id);
    this.cells = runs.map(() => Object.fromEntries(["state", "steps", "score", "heldOut"].map((name) => [name, make("td")])));
    this.adding = make("p", { class: "row" });
    this.element = make(
      "section", {},
      runs.length < 2 && make("p", { class: "soft" }, "Choose two runs or more."),
      runs.length > 0 && make("div", { class: "wide-table" }, make(
        "table", {},
        make("thead", {}, make("tr", {}, ...["Run", "State", "Steps", "Reward or loss", "Held-out"].map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...runs.map((run, at) => this.#row(run, at))),
      )),
      this.adding,
    );
    this.set(runs);
  }

  set(runs) {
    runs.forEach(({ state, steps, spec, progress }, at) => {
      const { state: cell, ...texts } = this.cells[at];
      cell.replaceChildren(make("span", { class: stateClass(state) }, stateText(state)[0]));
      setText(texts.steps, `${progress.step} of ${steps}`);
      setText(texts.score, fixed(trainsGiven(spec) ? progress.loss : progress.reward ?? progress.teacher_kl));
      setText(texts.heldOut, fixed(progress.held_out_loss ?? progress.accuracy));
    });
  }

  /** Offers the newest other runs. */
  async offer(signal) {
    const page = await fetchJson(`/v1/runs?limit=${OFFERED}`, { signal }).catch(() => ({ data: [] }));
    const others = page.data.filter(({ id, state }) => !this.ids.includes(id) && state !== "unreadable");
    if (!others.length || this.ids.length >= MOST_RUNS) return;
    const choice = make("select", { "aria-label": "run to add" }, ...others.map(({ id, name }) => make("option", { value: id }, name ? `${name} (${id})` : id)));
    this.adding.replaceChildren(choice, make("button", { onclick: () => this.open([...this.ids, choice.value]) }, "Add to the comparison"));
  }

  #row(run, at) {
    const { state, steps, score, heldOut } = this.cells[at];
    const takeOut = () => this.open(this.ids.filter((id) => id !== run.id));
    return make(
      "tr", {},
      make("td", {}, make("span", { class: `dot line-${at + 1}` }), `${at + 1} `, make("a", { href: `#/runs/${run.id}` }, run.name || run.id), make("div", { class: "soft small mono" }, run.id), make("button", { class: "plain small", "aria-label": `Take ${run.name || run.id} out`, onclick: takeOut }, "Take out")),
      state, steps, score, heldOut,
    );
  }
}

/** A table of the fields in which the runs' specs differ. */
export function differenceTable(runs) {
  const rows = differences(runs.map(({ spec }) => spec));
  const cell = (value) => make("td", {}, value === null ? "–" : make("pre", { class: "field-value" }, value));
  const table = make(
    "table", { class: "differences" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Field"), ...runs.map((run, at) => make("th", { scope: "col" }, make("span", { class: `dot line-${at + 1}` }), run.name || run.id)))),
    make("tbody", {}, ...rows.map(({ field, values }) => make("tr", {}, make("th", { scope: "row", class: "mono" }, field), ...values.map(cell)))),
  );
  return make("section", {}, make("h2", { class: "over-charts" }, "Differences of the specs"), rows.length ? make("div", { class: "wide-table" }, table) : make("p", { class: "soft" }, runs.length > 1 ? "None but the name." : "There is one run."));
}
