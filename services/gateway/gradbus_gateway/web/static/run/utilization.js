// How busy each service is: one number for the diagram, the time breakdown and the table of workers.
import { trainsGiven } from "../lib/run_kind.js";

const SECONDS = 10;

/** Means over ten seconds of the busy shares that workers report: a report covers two seconds, and a step may take longer. */
export class MeanUtilization {
  #reports = new Map();

  /** The workers, each with its mean as `busy`. */
  mean(workers, now = Date.now()) {
    this.#reports = new Map(workers.map((worker) => [worker.worker, [...this.#since(worker.worker, now - SECONDS * 1000), { at: now, busy: worker.busy }]]));
    return workers.map((worker) => ({ ...worker, busy: average(this.#reports.get(worker.worker).map(({ busy }) => busy)) }));
  }

  #since(name, time) {
    return (this.#reports.get(name) ?? []).filter(({ at }) => at > time);
  }
}

/** Busy shares: `generate` is the mean of the live rollouts, `wait`, `train` and `publish` are shares of the trainer's newest steps. A run on given responses has no `generate` and no `score`. */
export function timeShares(run, history, workers) {
  const rollouts = workers.filter((worker) => worker.role === "rollout");
  const { score, reference, generate } = run.progress.shares;
  if (trainsGiven(run.spec)) return { reference, ...history.shares() };
  return { score, reference, generate: rollouts.length ? average(rollouts.map((worker) => worker.busy)) : generate, ...history.shares() };
}

const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
