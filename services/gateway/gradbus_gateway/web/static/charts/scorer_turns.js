// The scorers of a run in their order.
import { fetchPatiently } from "../lib/api.js";
import { readsRewards } from "../lib/run_kind.js";

/** The answer of `GET .../reward`, read again when the run's history says that there is one more scorer. */
export class ScorerTurns {
  #found = [];
  #newest = -1;

  constructor(run, signal) {
    Object.assign(this, { run, signal });
  }

  /** What is known; while the gateway refuses it, what was known before. */
  async read({ scorers }) {
    const newest = scorers.at(-1)?.id ?? 0;
    if (!readsRewards(this.run.spec) || newest === this.#newest) return this.#found;
    this.#newest = newest;
    try {
      const answer = await fetchPatiently(`/v1/runs/${this.run.id}/reward`, this.signal);
      if (newest === this.#newest) this.#found = answer.scorers;
    } catch {
      // The view was left, or the run is gone, which the view says.
    }
    return this.#found;
  }
}
