// The runs of the list that are picked for a comparison, and the link to it.
import { comparisonOf, MOST_RUNS } from "../compare/address.js";
import { make } from "../lib/elements.js";

export class Picks {
  #ids = new Set();

  constructor() {
    this.element = make("p", { role: "status" });
    this.#show();
  }

  /** A box that picks a run. */
  box({ id, name }) {
    return make("input", { type: "checkbox", id: `pick-${id}`, "aria-label": `compare ${name || id}`, checked: this.#ids.has(id), onchange: (event) => this.pick(id, event.target.checked) });
  }

  pick(id, isPicked) {
    if (isPicked) this.#ids.add(id);
    else this.#ids.delete(id);
    this.#show();
  }

  #show() {
    const ids = [...this.#ids].slice(0, MOST_RUNS);
    const hint = this.#ids.size > MOST_RUNS ? `, the first of ${this.#ids.size}` : "";
    if (ids.length > 1) this.element.replaceChildren(make("a", { id: "compare", href: comparisonOf(ids) }, `Compare ${ids.length} runs`), hint);
    else this.element.replaceChildren(make("span", { class: "soft small" }, "Pick two runs or more to compare them."));
  }
}
