// How busy each part is, one figure for the whole page.
const SECONDS = 10;

/** Means over ten seconds: what a worker says of itself is of the last two, and a step may be longer. */
export class Busy {
  #said = new Map();

  /** The workers, each with its mean. */
  mean(workers, now = Date.now()) {
    this.#said = new Map(workers.map((worker) => [worker.worker, [...this.#since(worker.worker, now - SECONDS * 1000), { at: now, busy: worker.busy }]]));
    return workers.map((worker) => ({ ...worker, busy: average(this.#said.get(worker.worker).map(({ busy }) => busy)) }));
  }

  #since(name, time) {
    return (this.#said.get(name) ?? []).filter(({ at }) => at > time);
  }
}

/** Shares of the time by part: of the rollouts that are live the workers' own mean, of the trainer's time that of its last steps. */
export function sharesOf(run, history, workers) {
  const rollouts = workers.filter((worker) => worker.role === "rollout");
  const { score, generate } = run.progress.shares;
  return { score, generate: rollouts.length ? average(rollouts.map((worker) => worker.busy)) : generate, ...history.shares() };
}

const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
