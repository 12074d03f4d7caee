// When steps were reported, each asked of the gateway once.
import { fetchPatiently } from "../lib/api.js";

export class StepTimes {
  #known = new Map();

  constructor(runId, signal) {
    Object.assign(this, { runId, signal });
  }

  /** Milliseconds since 1970; undefined if the step was not reported yet. */
  async of(step) {
    if (step < 0) return undefined;
    if (!this.#known.has(step)) this.#known.set(step, await this.#read(step));
    return this.#known.get(step);
  }

  async #read(step) {
    for (;;) {
      const { metrics, is_whole: isWhole } = await fetchPatiently(`/v1/runs/${this.runId}/history?from=${step}&to=${step}&column=tokens`, this.signal);
      if (metrics.first.length) return Date.parse(metrics.first_at[0]);
      if (isWhole) return undefined;
    }
  }
}
