// What the kind of a run decides: whether responses are sampled and judged, or given by the dataset.

/** Whether the run trains on the responses of its dataset: nothing is sampled and nothing is judged. */
export const trainsGiven = (spec) => spec.kind !== "rl";

/** Whether a group is a chosen and a rejected response. */
export const trainsPairs = (spec) => trainsGiven(spec) && !["sft", "kto"].includes(spec.kind);

/** How many samples a group has. */
export const groupSize = (spec) => (!trainsGiven(spec) ? spec.rollout.group_size : spec.kind === "sft" ? 1 : 2);

/** Whether the reference service computes log-probabilities of the base model for the run. */
export const usesReferenceLogprobs = (spec) => !spec.trainer.lora && (spec.algorithm.kl > 0 || ["dpo", "ipo", "kto"].includes(spec.kind));

/** Steps whose groups are dispatched beyond the newest version, at most; with a `fixed_lag` schedule. */
export const stepsAhead = (spec) => (trainsGiven(spec) ? spec.checkpoint.every + 1 : spec.schedule.max_staleness + 2);
