// The charts of a run, each with one line of explanation.
import { Chart } from "./chart.js";
import { fixed, number, percent } from "../lib/format.js";

export class RunCharts {
  /** `spec` of the run: one with a critic has charts of it. */
  constructor(spec) {
    const metric = spec.evaluation.metric;
    this.reward = new Chart({ smooth: true, title: "Reward", explanation: "mean of the step's samples, ± one standard deviation", format: fixed, series: [{ label: "reward" }, { label: "above", edge: true }, { label: "below", edge: true }] });
    this.evaluation = new Chart({ title: "Held-out", explanation: `${metric} on held-out rows, by version`, format: fixed, points: true, series: [{ label: metric }] });
    this.tokens = new Chart({ smooth: true, title: "Speed", explanation: "trained tokens per second", series: [{ label: "tokens/s" }], format: (value) => number(value, 0) });
    this.entropy = new Chart({ smooth: true, title: "Entropy", explanation: "of the policy, in nats per token; near 0 it repeats itself", format: fixed, series: [{ label: "entropy" }] });
    this.kl = new Chart({ smooth: true, title: "KL", explanation: "divergence from the base model; 0 without a KL term", series: [{ label: "kl" }] });
    this.length = new Chart({ smooth: true, title: "Response length", explanation: "tokens, mean", format: (value) => fixed(value, 1), series: [{ label: "tokens" }] });
    this.clip = new Chart({ smooth: true, title: "Clipped", explanation: "share of tokens that the trust region bounds below / above", format: (value) => (Number.isFinite(value) ? `${(value * 100).toFixed(1)} %` : "–"), series: [{ label: "low" }, { label: "high", colour: 2 }] });
    this.staleness = new Chart({ title: "Staleness", explanation: "versions behind, mean / maximum", format: (value) => fixed(value, 1), series: [{ label: "mean" }, { label: "max", colour: 2 }] });
    this.truncated = new Chart({ smooth: true, title: "Truncated", explanation: "share of responses that reached max_new_tokens", format: percent, series: [{ label: "truncated" }] });
    this.diff = new Chart({ smooth: true, title: "Trainer – rollout", explanation: "mean difference of log-probabilities", series: [{ label: "difference" }] });
    this.norm = new Chart({ smooth: true, title: "Gradient norm", explanation: "before clipping", series: [{ label: "norm" }] });
    this.filtered = new Chart({ smooth: true, title: "Not trained", explanation: "groups per step, filtered / dropped", format: (value) => fixed(value, 0), series: [{ label: "filtered" }, { label: "dropped", colour: 2 }] });
    this.critic = spec.trainer.critic ? [
      new Chart({ smooth: true, title: "Explained variance", explanation: "share of the returns' variance that the critic explains; near 0 it knows nothing", format: fixed, series: [{ label: "share" }] }),
      new Chart({ smooth: true, title: "Value loss", explanation: "of the critic, before its updates", series: [{ label: "loss" }] }),
    ] : [];
    this.all = [this.reward, this.evaluation, this.tokens, this.entropy, this.kl, this.length, this.clip, this.staleness, this.truncated, this.diff, this.norm, this.filtered, ...this.critic];
  }

  set(history) {
    const { steps, columns, evaluations } = history;
    const band = (sign) => columns.reward.map((value, at) => (value === null ? null : value + sign * (columns.reward_std[at] ?? 0)));
    this.reward.set([steps, columns.reward, band(1), band(-1)]);
    this.evaluation.set([evaluations.versions, evaluations.scores]);
    this.tokens.set([steps, history.tokenRates()]);
    this.entropy.set([steps, columns.entropy]);
    this.kl.set([steps, columns.kl]);
    this.length.set([steps, columns.response_length]);
    this.clip.set([steps, columns.clip_low, columns.clip_high]);
    this.staleness.set([steps, columns.staleness_mean, columns.staleness_max]);
    this.truncated.set([steps, columns.truncated]);
    this.diff.set([steps, columns.logprob_diff]);
    this.norm.set([steps, columns.grad_norm]);
    this.filtered.set([steps, columns.filtered, columns.dropped]);
    [columns.explained_variance, columns.value_loss].forEach((values, at) => this.critic[at]?.set([steps, values]));
  }
}
