// Reads samples. The log is in order of time, so a time from the run's history says where in it a step begins.
import { ask } from "./api.js";

const EARLY = 5000;

/** Samples of one step (`step`) or one group (`index`); `tokens` adds ids and log-probabilities. */
export async function readSamples(run, history, { step, index, tokens = false, limit = 1000 }, signal) {
  const { mode, groups_per_step: width, max_staleness: lag } = run.spec.schedule;
  const asked = step === undefined ? { index } : { step };
  const query = new URLSearchParams({ ...asked, limit, ...(tokens ? { include: "tokens" } : {}) });
  const whole = (step === undefined ? 1 : width) * run.spec.rollout.group_size;
  const trained = step ?? Math.floor(index / width);
  // Nothing is dispatched more than lag + 2 steps ahead of the newest version.
  const known = mode === "fixed_lag" ? history.timeOf(trained - lag - 4) : undefined;
  if (known !== undefined) {
    const page = await ask(`/v1/runs/${run.id}/samples?${query}&after=${Math.floor(known) - EARLY}-0.0`, { signal });
    if (page.has_more || page.data.length >= whole) return page;
  }
  return ask(`/v1/runs/${run.id}/samples?${query}`, { signal });
}

/** Samples by group, in the order in which they came. */
export function byGroup(samples) {
  const groups = new Map();
  for (const sample of samples) groups.set(sample.index, [...(groups.get(sample.index) ?? []), sample]);
  return [...groups.values()];
}
