// The charts of a run, each with one line of explanation.
import { Chart } from "./chart.js";
import { fixed, number, percent } from "../lib/format.js";
import { readsRewards, trainsGiven, trainsPairs } from "../lib/run_kind.js";

const exactPercent = (value) => (Number.isFinite(value) ? `${(value * 100).toFixed(1)} %` : "–");

/** A chart of columns of the history, each of which is a line. */
function of(title, explanation, columns, format = number, smooth = true) {
  const series = Object.entries(columns).map(([, label], at) => ({ label, colour: at + 1 }));
  return { options: { smooth, title, explanation, format, series }, data: (history) => [history.steps, ...Object.keys(columns).map((name) => history.columns[name])] };
}

const SPEED = {
  options: { smooth: true, title: "Speed", explanation: "trained tokens per second", series: [{ label: "tokens/s" }], format: (value) => number(value, 0), hasExtremes: false },
  data: (history) => [history.steps, history.tokenRates()],
};
const ENTROPY = of("Entropy", "of the policy, in nats per token; near 0 it repeats itself", { entropy: "entropy" }, fixed);
const LENGTH = of("Response length", "tokens, mean", { response_length: "tokens" }, (value) => fixed(value, 1));
const NORM = of("Gradient norm", "before clipping", { grad_norm: "norm" });
const REWARD = {
  options: { smooth: true, title: "Reward", explanation: "mean of the step's samples, ± one standard deviation", ofLine: "mean of the step's samples", format: fixed, series: [{ label: "reward" }, { label: "above", edge: true }, { label: "below", edge: true }] },
  data: ({ steps, columns, means }) => {
    const band = (sign) => means.reward.map((value, at) => (value === null ? null : value + sign * (means.reward_std[at] ?? 0)));
    return [steps, columns.reward, band(1), band(-1)];
  },
};

const REWARD_RANGE = of("Range of rewards", "smallest and largest reward of the step's samples", { reward_min: "smallest", reward_max: "largest" }, fixed, false);

const evaluation = ({ evaluation: { metric } }) => ({
  options: { title: "Held-out", explanation: `${metric} on held-out rows, by version`, format: fixed, points: true, by: "version", series: [{ label: metric }] },
  data: ({ evaluations }) => [evaluations.versions, evaluations.scores],
});

const TEACHER = of("KL to the teacher", "mean log-ratio of policy and teacher over the sampled tokens, in nats; 0 is the teacher itself", { teacher_kl: "kl" });
const HELD_OUT_LOSS = {
  options: { title: "Held-out loss", explanation: "on held-out rows, by version; if it rises while the loss falls, the run learns its rows by heart", format: number, points: true, by: "version", series: [{ label: "loss" }] },
  data: ({ evaluations }) => [evaluations.versions, evaluations.scores],
};
const HELD_OUT_ACCURACY = {
  options: { title: "Held-out accuracy", explanation: "share of held-out pairs whose chosen response has the higher reward, by version", format: fixed, points: true, by: "version", series: [{ label: "accuracy" }] },
  data: ({ evaluations }) => [evaluations.versions, evaluations.accuracies],
};
const heldOut = (spec) => (!spec.data?.eval ? [] : trainsPairs(spec) ? [HELD_OUT_LOSS, HELD_OUT_ACCURACY] : [HELD_OUT_LOSS]);

const sampled = (spec) => [
  ...(readsRewards(spec) ? [REWARD, REWARD_RANGE] : []), ...(spec.teacher ? [TEACHER] : []), evaluation(spec), SPEED, ENTROPY,
  of("KL", "divergence from the base model; 0 without a KL term", { kl: "kl" }),
  LENGTH,
  of("Clipped", "share of tokens that the trust region bounds below / above", { clip_low: "low", clip_high: "high" }, exactPercent),
  of("Staleness", "versions behind, mean / maximum", { staleness_mean: "mean", staleness_max: "max" }, (value) => fixed(value, 1), false),
  of("Truncated", "share of responses that ran out of tokens", { truncated: "truncated" }, percent),
  of("Trainer – rollout", "mean difference of log-probabilities", { logprob_diff: "difference" }),
  NORM,
  of("Not trained", "groups per step, filtered / dropped", { filtered: "filtered", dropped: "dropped" }, (value) => fixed(value, 0)),
];

const CRITIC = [
  of("Explained variance", "share of the returns' variance that the critic explains; near 0 it knows nothing", { explained_variance: "share" }, fixed),
  of("Value loss", "of the critic, before its updates", { value_loss: "loss" }),
];

const OUTLIERS = of("Outliers", "share of tokens whose squared log-ratio is too large to move the policy", { outliers: "share" }, exactPercent);
const COVARIANCE = of("High covariance", "share of tokens that were left out for the covariance of log-probability and advantage", { covariance_clipped: "share" }, exactPercent);
const DISTANCE = of("Distance of the policies", "total variation between the one that sampled and the trained one; 0 on-policy, at most 1", { total_variation: "distance" });
const DRIFT = of("Drift", "mean square of the log-ratio of trained and sampling policy", { drift: "drift" });
const LIKELIHOOD = of("Best samples", "negative log-likelihood of the groups' best samples, in nats per token", { nll: "nll" });
const LARGEST_KL = of("Largest KL", "of a token to the reference, in nats; a jump is one token that became unlikely", { kl_max: "largest" });
const STEP_KL = of("KL of the step", "from the policy before the step to that of its last update, in nats", { step_kl: "kl" });

/** Of the axes of an algorithm that few runs use. */
const optional = ({ algorithm, trainer }) => {
  const coefficients = { ...(algorithm.kl_control ? { kl_coefficient: "KL" } : {}), ...(algorithm.entropy_control ? { entropy_coefficient: "entropy" } : {}) };
  return [
    ...(algorithm.kl ? [LARGEST_KL] : []),
    ...(algorithm.second_moment ? [OUTLIERS] : []), ...(algorithm.covariance_clip ? [COVARIANCE] : []), ...(algorithm.centering ? [DISTANCE] : []),
    ...(algorithm.drift ? [DRIFT] : []), ...(algorithm.nll ? [LIKELIHOOD] : []), ...(trainer.inner?.stop_kl ? [STEP_KL] : []),
    ...(Object.keys(coefficients).length ? [of("Coefficients", "of the loss, as their controllers set them", coefficients)] : []),
  ];
};

const LOSS = of("Loss", "of the step, before its update", { loss: "loss" });
const RATE = of("Learning rate", "of the step", { learning_rate: "rate" });
const PAIRS = [
  of("Accuracy", "share of pairs whose chosen response has the higher reward; 0.5 is a guess", { accuracy: "accuracy" }, fixed),
  of("Margin", "reward of the chosen response minus that of the rejected one", { margin: "margin" }),
];
const LOGPROBS = of("Chosen / rejected", "log-probability of the response in nats", { chosen_logprob: "chosen", rejected_logprob: "rejected" });
const SCORES = of("Chosen / rejected", "score of the response", { chosen_score: "chosen", rejected_score: "rejected" });

const LABELS = [
  of("Margin", "mean reward of desirable responses minus that of undesirable ones", { margin: "margin" }),
  of("Desirable / undesirable", "log-ratio of the response to the base model in nats", { desirable_logratio: "desirable", undesirable_logratio: "undesirable" }),
  of("KL", "the loss's reference point: log-ratio of mismatched responses in nats, at least 0", { kl: "kl" }),
];

const PREFERENCES = { kto: LABELS, reward_model: [...PAIRS, SCORES] };
const preferences = (spec) => (spec.kind === "sft" ? [ENTROPY] : PREFERENCES[spec.kind] ?? [...PAIRS, LOGPROBS]);
const given = (spec) => [LOSS, ...heldOut(spec), ...preferences(spec), NORM, RATE, LENGTH, SPEED];

/** The charts that fit a run: [{options, data}], `data` gives a chart's columns of a history's `drawn` or `averaged`. */
export const chartsOf = (spec) => (trainsGiven(spec) ? given(spec) : [...sampled(spec), ...optional(spec), ...(spec.trainer.critic ? CRITIC : [])]);

/** The first and the last step, or version, of what is drawn; [0, 0] before the first. */
export function extent({ steps, evaluations }, by) {
  const xs = by === "version" ? evaluations.versions : steps;
  return [xs[0] ?? 0, xs.at(-1) ?? 0];
}

export class RunCharts {
  #data;

  /** `onStep(step)` is called for a step that was chosen in a chart. */
  constructor(spec, view, onStep) {
    const charts = chartsOf(spec);
    this.#data = charts.map(({ data }) => data);
    this.all = charts.map(({ options }) => new Chart(options, view, onStep));
  }

  /** `history`: a LiveHistory. */
  set({ shown, whole }) {
    const { drawn, averaged } = shown;
    const look = (chart) => ({ whole: extent(whole.drawn, chart.by), spanAt: (_, x) => shown.spanAt(chart.by, x), weightsOf: () => drawn.weights });
    this.all.forEach((chart, at) => chart.set(this.#data[at](drawn), { ...look(chart), means: this.#data[at](averaged) }));
  }
}
