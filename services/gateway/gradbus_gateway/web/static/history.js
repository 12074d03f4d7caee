// A run's history as columns: what the event stream says, from the first event on and then live.
import { ask } from "./api.js";

const TYPES = ["metrics", "state", "evaluation", "checkpoint", "alarm", "diverged", "unchanged", "dropped", "broadcast", "learner"];
const CHARTED = [
  "reward", "reward_std", "entropy", "kl", "response_length", "truncated", "clip_low", "clip_high", "staleness_mean", "staleness_max",
  "tokens", "grad_norm", "loss", "logprob_diff", "ratio_max", "learning_rate", "filtered", "dropped", "masked",
];
const TOLD = 400;

export class History {
  steps = [];
  /** Milliseconds at which each step was told of. */
  times = [];
  columns = Object.fromEntries(CHARTED.map((name) => [name, []]));
  /** Reward parts by name. */
  parts = {};
  seconds = { wait: [], train: [], publish: [] };
  evaluations = { versions: [], scores: [], metric: "" };
  /** What is not a number: newest last. */
  told = [];
  newest = 0;

  take(event) {
    if (event.id <= this.newest) return;
    this.newest = event.id;
    if (event.type === "metrics") this.#metrics(event);
    else {
      if (event.type === "evaluation" && event.data.accuracy !== null && event.data.accuracy !== undefined) this.#evaluation(event.data);
      this.told.push(event);
      if (this.told.length > TOLD) this.told.shift();
    }
  }

  #metrics({ data, created_at }) {
    if (this.steps.length && data.step <= this.steps.at(-1)) return; // a replayed step tells nothing new
    this.steps.push(data.step);
    this.times.push(Date.parse(created_at));
    for (const name of CHARTED) this.columns[name].push(data[name] ?? null);
    for (const [name, value] of Object.entries(data.components ?? {})) {
      this.parts[name] ??= Array(this.steps.length - 1).fill(null);
      this.parts[name][this.steps.length - 1] = value;
    }
    for (const name of Object.keys(this.seconds)) this.seconds[name].push(data.seconds?.[name] ?? 0);
  }

  #evaluation(data) {
    this.evaluations.versions.push(data.version);
    this.evaluations.scores.push(data.accuracy);
    this.evaluations.metric = data.metric ?? "reward";
  }

  /** When step `step` was told of, in milliseconds; undefined when it is not known. */
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

  /** Shares of the trainer's time over the newest `most` steps; null before the first. */
  shares(most = 50) {
    const sums = Object.entries(this.seconds).map(([name, values]) => [name, values.slice(-most).reduce((sum, value) => sum + value, 0)]);
    const total = sums.reduce((sum, [, value]) => sum + value, 0);
    return total ? Object.fromEntries(sums.map(([name, value]) => [name, value / total])) : null;
  }

  /** Steps and trained tokens a second: over the newest `seconds`, or over the whole run when it is over. Null when nothing moves. */
  rates(isOver, seconds = 10) {
    const { times } = this;
    const until = isOver ? times.at(-1) : Date.now();
    let from = isOver ? 0 : times.findIndex((time) => time >= until - seconds * 1000);
    if (from < 0 || times.length - from < 2) return null;
    const span = (times.at(-1) - times[from]) / 1000;
    if (span <= 0) return null;
    const count = (values) => values.slice(from + 1).reduce((sum, value) => sum + (value ?? 0), 0);
    return { steps: (times.length - 1 - from) / span, tokens: count(this.columns.tokens) / span, groups: count(this.columns.filtered) / span };
  }

  /** Trained tokens a second at each step, over the second before it. */
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

/** Follows a run's events until `signal` is aborted or `isOver` says so; `changed` is called a few times a second at most. */
export function follow(runId, history, signal, changed, isOver) {
  let source = null;
  let pending = 0;
  const tell = () => {
    pending ||= setTimeout(() => {
      pending = 0;
      if (!signal.aborted) changed();
    }, 150);
  };
  const take = (message) => {
    history.take(JSON.parse(message.data));
    tell();
  };
  const open = () => {
    if (source || signal.aborted || document.hidden) return;
    source = new EventSource(`/v1/runs/${runId}/events?after=${history.newest}`);
    for (const type of TYPES) source.addEventListener(type, take);
    source.onmessage = take;
    source.onerror = () => {
      // The stream of a run that is over has ended for good; any other is taken up again.
      const gone = source.readyState === EventSource.CLOSED;
      close();
      if (!isOver()) setTimeout(open, gone ? 3000 : 500);
    };
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const look = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", () => {
    clearTimeout(pending);
    document.removeEventListener("visibilitychange", look);
    close();
  });
  open();
}

const PAGES = 20;
const kept = { runId: "", history: null };

/** The history of a run, shared by its views: what one has read the next need not ask for again. */
export function historyOf(runId) {
  if (kept.runId !== runId) Object.assign(kept, { runId, history: new History() });
  return kept.history;
}

/** Reads what a history lacks, up to `PAGES` thousand events. */
export async function catchUp(runId, history, signal) {
  for (let page = 0; page < PAGES; page += 1) {
    const answer = await ask(`/v1/runs/${runId}/events?after=${history.newest}&limit=1000`, { signal });
    answer.data.forEach((event) => history.take(event));
    if (!answer.has_more) return;
  }
}
