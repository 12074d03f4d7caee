// A run's history: its metrics as columns, its evaluations, and its other events.
import { Columns } from "./columns.js";

const METRICS = [
  "reward", "reward_std", "reward_min", "reward_max", "entropy", "kl", "kl_max", "teacher_kl", "response_length", "truncated", "clip_low", "clip_high", "staleness_mean", "staleness_max",
  "tokens", "grad_norm", "logprob_diff", "filtered", "dropped", "explained_variance", "value_loss",
  "loss", "learning_rate", "accuracy", "margin", "chosen_logprob", "rejected_logprob", "chosen_score", "rejected_score",
  "desirable_logratio", "undesirable_logratio", "outliers", "covariance_clipped", "total_variation", "step_kl", "drift", "nll", "kl_coefficient", "entropy_coefficient",
];
const PHASES = ["wait", "train", "publish"];
/** The columns that are read of `GET .../history`. */
export const COLUMNS = [...METRICS, ...PHASES.map((name) => `seconds/${name}`)];
const SCORES = ["loss", "accuracy"];
const MAX_EVENTS = 400;
const MAX_SCORERS = 1000;

function keep(events, event, most) {
  events.push(event);
  if (events.length > most) events.shift();
}

/** The number in `data` with a path like `seconds/wait`. */
function numberAt(data, path) {
  const value = path.split("/").reduce((part, name) => part?.[name], data);
  return Number.isFinite(value) ? value : null;
}

export class RunHistory {
  /** The newest events that are not metrics, newest last. */
  events = [];
  /** The newest events of scorers, which stay longer than the others: charts mark them. */
  scorers = [];
  /** Id of the newest event. */
  newest = 0;
  /** How many steps were added one by one. */
  added = 0;
  #metrics = new Columns(COLUMNS);
  #evaluations = new Columns(SCORES);

  /** The history in an answer of `GET .../history`; what comes later is added. */
  static of({ metrics, evaluations, events, newest }) {
    const history = new RunHistory();
    history.#metrics = Columns.of(COLUMNS, metrics);
    history.#evaluations = Columns.of(SCORES, evaluations);
    events.forEach((event) => history.#keep(event));
    history.newest = newest;
    return history;
  }

  get steps() {
    return this.#metrics.xs;
  }

  /** The last step or version. */
  get last() {
    return Math.max(this.#metrics.xs.at(-1) ?? 0, this.#evaluations.xs.at(-1) ?? 0);
  }

  /** When each of `steps` was reported, in milliseconds since 1970. */
  get times() {
    return this.#metrics.times;
  }

  /** What charts draw; `averaged` has means in place of extremes. */
  get drawn() {
    return this.#seen("values");
  }

  get averaged() {
    return this.#seen("means");
  }

  /** The first and the last step, or version, that the point of a chart stands for. */
  spanAt(by, x) {
    return (by === "version" ? this.#evaluations : this.#metrics).spanAt(x);
  }

  add(event) {
    if (event.id <= this.newest) return;
    this.newest = event.id;
    const { type, data } = event;
    const time = Date.parse(event.created_at);
    if (type === "metrics") {
      this.#metrics.add(data.step, time, (name) => numberAt(data, name));
      this.added += 1;
      return;
    }
    if (type === "evaluation" && SCORES.some((name) => numberAt(data, name) !== null)) this.#evaluations.add(data.version, time, (name) => numberAt(data, name));
    this.#keep(event);
  }

  #keep(event) {
    keep(this.events, event, MAX_EVENTS);
    if (event.type === "scorer") keep(this.scorers, event, MAX_SCORERS);
  }

  #seen(kind) {
    const [metrics, evaluations] = [this.#metrics, this.#evaluations];
    const { loss, accuracy } = evaluations[kind];
    return {
      steps: metrics.xs,
      weights: metrics.weights,
      columns: metrics[kind],
      means: metrics.means,
      evaluations: { versions: evaluations.xs, scores: loss.some((value) => value !== null) ? loss : accuracy, accuracies: accuracy },
      tokenRates: () => this.tokenRates(),
    };
  }

  /** Shares of the trainer's time over the newest `count` steps; null before the first. */
  shares(count = 50) {
    const sums = PHASES.map((name) => [name, this.#metrics.means[`seconds/${name}`].slice(-count).reduce((sum, value) => sum + (value ?? 0), 0)]);
    const total = sums.reduce((sum, [, value]) => sum + value, 0);
    return total ? Object.fromEntries(sums.map(([name, value]) => [name, value / total])) : null;
  }

  /** Steps and trained tokens per second, over the newest `seconds` or, once it is over, the whole run. Null without steps. */
  rates(isOver, seconds = 10) {
    const { times, weights } = this.#metrics;
    const until = isOver ? times.at(-1) : Date.now();
    let from = isOver ? 0 : times.findIndex((time) => time >= until - seconds * 1000);
    if (from < 0 || times.length - from < 2) return null;
    const span = (times.at(-1) - times[from]) / 1000;
    if (span <= 0) return null;
    const total = (values) => values.slice(from + 1).reduce((sum, value) => sum + value, 0);
    return { steps: total(weights) / span, tokens: total(this.#tokens()) / span };
  }

  /** Trained tokens per second at each step, over the second before it. */
  tokenRates() {
    const { times } = this.#metrics;
    const trained = this.#tokens();
    const rates = [];
    let from = 0;
    let tokens = 0;
    for (let at = 0; at < times.length; at += 1) {
      tokens += trained[at];
      while (from < at - 4 && times[at] - times[from + 1] >= 1000) tokens -= trained[(from += 1)];
      const span = times[at] - times[from];
      rates.push(span > 0 && at > 3 ? ((tokens - trained[from]) * 1000) / span : null);
    }
    return rates;
  }

  /** Trained tokens of the rows that each point stands for. */
  #tokens() {
    const { weights, means } = this.#metrics;
    return means.tokens.map((tokens, at) => (tokens ?? 0) * weights[at]);
  }
}
