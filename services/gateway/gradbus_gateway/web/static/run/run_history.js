// A run's history: its metrics as columns, its evaluations, and its other events.
const COLUMNS = [
  "reward", "reward_std", "reward_min", "reward_max", "entropy", "kl", "kl_max", "teacher_kl", "response_length", "truncated", "clip_low", "clip_high", "staleness_mean", "staleness_max",
  "tokens", "grad_norm", "logprob_diff", "filtered", "dropped", "explained_variance", "value_loss",
  "loss", "learning_rate", "accuracy", "margin", "chosen_logprob", "rejected_logprob", "chosen_score", "rejected_score",
  "desirable_logratio", "undesirable_logratio", "outliers", "covariance_clipped", "total_variation", "step_kl", "drift", "nll", "kl_coefficient", "entropy_coefficient",
];
const MAX_EVENTS = 400;
const MAX_SCORERS = 1000;
const scoreOf = ({ loss, accuracy }) => (loss === undefined ? accuracy : loss);

function keep(events, event, most) {
  events.push(event);
  if (events.length > most) events.shift();
}

export class RunHistory {
  steps = [];
  /** When each step's metrics were recorded, in milliseconds since 1970. */
  times = [];
  columns = Object.fromEntries(COLUMNS.map((name) => [name, []]));
  seconds = { wait: [], train: [], publish: [] };
  /** By evaluated version: its score, the mean of a metric or the loss of given responses, and the accuracy of pairs. */
  evaluations = { versions: [], scores: [], accuracies: [] };
  /** The newest events that are not metrics, newest last. */
  events = [];
  /** The newest events of scorers, which stay longer than the others: charts mark them. */
  scorers = [];
  /** Id of the newest event. */
  newest = 0;

  add(event) {
    if (event.id <= this.newest) return;
    this.newest = event.id;
    if (event.type === "metrics") this.#metrics(event);
    else {
      if (event.type === "evaluation" && Number.isFinite(scoreOf(event.data))) this.#evaluation(event.data);
      keep(this.events, event, MAX_EVENTS);
      if (event.type === "scorer") keep(this.scorers, event, MAX_SCORERS);
    }
  }

  #metrics({ data, created_at }) {
    if (this.steps.length && data.step <= this.steps.at(-1)) return; // replayed after a restart of the trainer
    this.steps.push(data.step);
    this.times.push(Date.parse(created_at));
    for (const name of COLUMNS) this.columns[name].push(data[name] ?? null);
    for (const name of Object.keys(this.seconds)) this.seconds[name].push(data.seconds?.[name] ?? 0);
  }

  #evaluation(data) {
    this.evaluations.versions.push(data.version);
    this.evaluations.scores.push(scoreOf(data));
    this.evaluations.accuracies.push(data.accuracy ?? null);
  }

  /** When the metrics of `step` were recorded, in milliseconds since 1970; undefined if they are not known. */
  timeOf(step) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] === step) return this.times[middle];
      if (this.steps[middle] < step) low = middle + 1;
      else high = middle - 1;
    }
    return undefined;
  }

  /** Shares of the trainer's time over the newest `count` steps; null before the first. */
  shares(count = 50) {
    const sums = Object.entries(this.seconds).map(([name, values]) => [name, values.slice(-count).reduce((sum, value) => sum + value, 0)]);
    const total = sums.reduce((sum, [, value]) => sum + value, 0);
    return total ? Object.fromEntries(sums.map(([name, value]) => [name, value / total])) : null;
  }

  /** Steps and trained tokens per second, over the newest `seconds` or, once it is over, the whole run. Null without steps. */
  rates(isOver, seconds = 10) {
    const { times } = this;
    const until = isOver ? times.at(-1) : Date.now();
    let from = isOver ? 0 : times.findIndex((time) => time >= until - seconds * 1000);
    if (from < 0 || times.length - from < 2) return null;
    const span = (times.at(-1) - times[from]) / 1000;
    if (span <= 0) return null;
    const total = (values) => values.slice(from + 1).reduce((sum, value) => sum + (value ?? 0), 0);
    return { steps: (times.length - 1 - from) / span, tokens: total(this.columns.tokens) / span };
  }

  /** Trained tokens per second at each step, over the second before it. */
  tokenRates() {
    const { times, columns } = this;
    const rates = [];
    let from = 0;
    let tokens = 0;
    for (let at = 0; at < times.length; at += 1) {
      tokens += columns.tokens[at] ?? 0;
      while (from < at - 4 && times[at] - times[from + 1] >= 1000) tokens -= columns.tokens[(from += 1)] ?? 0;
      const span = times[at] - times[from];
      rates.push(span > 0 && at > 3 ? ((tokens - (columns.tokens[from] ?? 0)) * 1000) / span : null);
    }
    return rates;
  }
}
