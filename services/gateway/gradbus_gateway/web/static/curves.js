// Which curves a run shows, and what each of them says.
import { Chart } from "./charts.js";
import { fixed, number, percent } from "./words.js";

export class Curves {
  constructor(metric) {
    this.reward = new Chart({ smooth: true, title: "Reward", meaning: "mean of the step's samples, ± one deviation", format: fixed, series: [{ label: "reward" }, { label: "above", edge: true }, { label: "below", edge: true }] });
    this.evaluation = new Chart({ title: "Held-out", meaning: `${metric} on rows it never trains on, by version`, format: fixed, points: true, series: [{ label: metric }] });
    this.tokens = new Chart({ smooth: true, title: "Speed", meaning: "trained tokens a second", series: [{ label: "tokens/s" }], format: (value) => number(value, 0) });
    this.entropy = new Chart({ smooth: true, title: "Entropy", meaning: "of the policy, nats a token; near 0 it repeats itself", format: fixed, series: [{ label: "entropy" }] });
    this.kl = new Chart({ smooth: true, title: "KL", meaning: "from the base model; 0 when the spec asks for none", series: [{ label: "kl" }] });
    this.length = new Chart({ smooth: true, title: "Response length", meaning: "tokens, mean", format: (value) => fixed(value, 1), series: [{ label: "tokens" }] });
    this.clip = new Chart({ smooth: true, title: "Clipped", meaning: "share of tokens below / above the clip range", format: (value) => (Number.isFinite(value) ? `${(value * 100).toFixed(1)} %` : "–"), series: [{ label: "low" }, { label: "high", colour: 2 }] });
    this.staleness = new Chart({ title: "Staleness", meaning: "versions behind, mean / most", format: (value) => fixed(value, 1), series: [{ label: "mean" }, { label: "most", colour: 2 }] });
    this.truncated = new Chart({ smooth: true, title: "Cut off", meaning: "share of responses that reached max_new_tokens", format: percent, series: [{ label: "truncated" }] });
    this.diff = new Chart({ smooth: true, title: "Trainer against rollout", meaning: "mean difference of their log-probabilities", series: [{ label: "difference" }] });
    this.norm = new Chart({ smooth: true, title: "Gradient norm", meaning: "before clipping", series: [{ label: "norm" }] });
    this.filtered = new Chart({ smooth: true, title: "Left out", meaning: "groups of a step filtered / dropped", format: (value) => fixed(value, 0), series: [{ label: "filtered" }, { label: "dropped", colour: 2 }] });
    this.all = [this.reward, this.evaluation, this.tokens, this.entropy, this.kl, this.length, this.clip, this.staleness, this.truncated, this.diff, this.norm, this.filtered];
  }

  set(history) {
    const { steps, columns, evaluations } = history;
    const spread = (sign) => columns.reward.map((value, at) => (value === null ? null : value + sign * (columns.reward_std[at] ?? 0)));
    this.reward.set([steps, columns.reward, spread(1), spread(-1)]);
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
  }
}
