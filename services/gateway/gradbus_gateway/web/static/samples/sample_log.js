// Reads samples from the experience log. The log is in order of time, so the time of a step's metrics tells where to begin.
import { fetchJson } from "../lib/api.js";
import { groupSize, hasFixedSteps, stepsAhead, trainsGiven } from "../lib/run_kind.js";

const MARGIN_MS = 5000;

/** Samples of one step (`step`) or one group (`index`), with their rows unless `rows` is false; `times` (StepTimes) tell where to begin, `tokens` adds ids and log-probabilities. */
export async function readSamples(run, times, { step, index, tokens = false, rows = true, limit = 1000 }, signal) {
  const { groups_per_step: width } = run.spec.schedule;
  const filter = step === undefined ? { index } : { step };
  const query = new URLSearchParams({ ...filter, limit });
  if (rows) query.append("include", "item");
  if (tokens) query.append("include", "tokens");
  const expected = (step === undefined ? 1 : width) * groupSize(run.spec);
  const trainingStep = step ?? Math.floor(index / width);
  const start = hasFixedSteps(run.spec) ? await times.of(trainingStep - stepsAhead(run.spec) - 2) : undefined;
  if (start !== undefined) {
    const page = await fetchJson(`/v1/runs/${run.id}/samples?${query}&after=${Math.floor(start) - MARGIN_MS}-0.0`, { signal });
    if (page.has_more || page.data.length >= expected) return page;
  }
  return fetchJson(`/v1/runs/${run.id}/samples?${query}`, { signal });
}

/** Puts the row beside each sample, read once a group: beside every sample of a step, long rows would fill the page. */
export async function addRows(run, times, samples, signal) {
  for (const group of byGroup(samples)) {
    const page = await readSamples(run, times, { index: group[0].index, limit: 1 }, signal);
    for (const sample of group) sample.item = page.data[0]?.item ?? null;
  }
}

/** The row's fields beside its prompt, of a run whose responses are not the row's own: [[name, text]]. */
export function answersOf(run, sample) {
  if (!sample.item || trainsGiven(run.spec)) return [];
  const { prompt } = run.spec.data;
  return Object.entries(sample.item).filter(([name]) => name !== prompt).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
}

/** The samples of each group, in the order of the log. */
export function byGroup(samples) {
  const groups = new Map();
  for (const sample of samples) groups.set(sample.index, [...(groups.get(sample.index) ?? []), sample]);
  return [...groups.values()];
}
