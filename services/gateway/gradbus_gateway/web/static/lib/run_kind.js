// What the kind of a run decides: whether responses are sampled and judged, or given by the dataset.

/** Whether the run trains on the responses of its dataset: nothing is sampled and nothing is judged. */
export const trainsGiven = (spec) => spec.kind !== "rl";

/** Whether a group is a chosen and a rejected response. */
export const trainsPairs = (spec) => trainsGiven(spec) && !["sft", "kto"].includes(spec.kind);

/** How many samples a group has. */
export const groupSize = (spec) => (!trainsGiven(spec) ? spec.rollout.group_size : spec.kind === "sft" ? 1 : 2);

/** Whether a scorer judges the samples that are trained; otherwise a teacher alone does, if there are samples. */
export const readsRewards = (spec) => !trainsGiven(spec) && spec.algorithm.advantage !== "distill";

/** Whether the reference service computes log-probabilities for the run, of the base model or of a teacher. */
export const usesReferenceLogprobs = (spec) => Boolean(spec.teacher) || (!spec.trainer.lora && (spec.algorithm.kl > 0 || ["dpo", "ipo", "kto"].includes(spec.kind)));

/** Whether a group's index tells which step takes it: neither with a `free` schedule nor where filtered groups are replaced. */
export const hasFixedSteps = ({ schedule }) => schedule.mode === "fixed_lag" && schedule.dynamic_sampling === 1;

/** Steps whose groups are dispatched beyond the newest version, at most; with a `fixed_lag` schedule. */
export const stepsAhead = (spec) => (trainsGiven(spec) ? spec.checkpoint.every + 1 : spec.schedule.max_staleness + 2);
