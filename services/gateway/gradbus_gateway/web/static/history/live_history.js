// The history that charts show: of all steps, and of those that are zoomed to, each as many points as a chart has room for.
import { fetchJson, fetchPatiently } from "../lib/api.js";
import { COLUMNS, RunHistory } from "./run_history.js";

const POINTS = 500;
const EVENTS = 400;
/** So many steps are added one by one before the history is read again. */
const MOST_ADDED = 1000;
/** The newest events, which an answer that is on its way may lack. */
const MOST_RECENT = 500;
const BATCH = 1000;
const SETTLED_MS = 120;

const pathOf = (runId, parts) => `/v1/runs/${runId}/history?${new URLSearchParams([["points", POINTS], ...parts, ...COLUMNS.map((name) => ["column", name])])}`;

export class LiveHistory {
  /** All steps. */
  whole = new RunHistory();
  isWhole = false;
  #part = null;
  #recent = [];
  #isLoading = false;
  #zooming = new AbortController();

  /** `onChange` is called with each part that was read. */
  constructor(runId, view, signal, onChange) {
    Object.assign(this, { runId, view, signal, onChange });
    view.listen((changed) => changed.includes("zoom") && this.#zoom());
  }

  /** What the charts show. */
  get shown() {
    return this.#part ?? this.whole;
  }

  /** What is said of the charts of the run `name` while the gateway still reads its events; empty when it has them all. */
  cutText(name) {
    return this.isWhole || !this.newest ? "" : `The curves of ${name} end at step ${this.whole.steps.at(-1) ?? 0}, because it has many events: the rest is being read.`;
  }

  get newest() {
    return this.whole.newest;
  }

  /** Reads all steps; `ask` is how: `fetchJson` or `fetchPatiently`. While the gateway itself still reads, what it has is shown. */
  async load(ask = (path) => fetchPatiently(path, this.signal)) {
    this.#isLoading = true;
    try {
      for (this.isWhole = false; !this.isWhole; ) {
        const found = await ask(pathOf(this.runId, [["events", EVENTS]]));
        this.whole = this.#current(found);
        this.isWhole = found.is_whole;
        this.onChange();
      }
    } finally {
      this.#isLoading = false;
    }
    if (this.view.zoom && !this.#part) this.#zoom();
  }

  /** Reads what came since, all of it the first time. */
  async update() {
    const ask = (path) => fetchJson(path, { signal: this.signal });
    if (!this.isWhole) return this.load(ask);
    const page = await ask(`/v1/runs/${this.runId}/events?after=${this.newest}&limit=${BATCH}`);
    page.data.forEach((event) => this.add(event));
    return page.has_more ? this.load(ask) : this.onChange();
  }

  add(event) {
    this.#recent.push(event);
    if (this.#recent.length > MOST_RECENT) this.#recent.shift();
    this.whole.add(event);
    if (this.#part && !(event.data.step > this.view.zoom[1])) this.#part.add(event);
    if (this.whole.added > MOST_ADDED && !this.#isLoading) this.load().catch(() => {}); // it is left, or the view says why it is not read
  }

  #current(found) {
    const history = RunHistory.of(found);
    this.#recent.forEach((event) => history.add(event));
    return history;
  }

  /** Reads the steps that are zoomed to, once the zoom rests; until then they are those of the whole. */
  #zoom() {
    this.#zooming.abort();
    this.#zooming = new AbortController();
    if (this.#part) {
      this.#part = null;
      this.onChange();
    }
    const { zoom } = this.view;
    if (!zoom || this.#isExact(zoom)) return;
    const signal = AbortSignal.any([this.signal, this.#zooming.signal]);
    setTimeout(async () => {
      if (signal.aborted) return;
      try {
        const found = await fetchPatiently(pathOf(this.runId, [["from", zoom[0]], ["to", zoom[1]]]), signal);
        if (signal.aborted) return;
        this.#part = this.#current(found);
        this.onChange();
      } catch {
        // The view was left, or the run is gone, which the view says.
      }
    }, SETTLED_MS);
  }

  /** Whether the whole has each of these steps as a point. */
  #isExact([from, to]) {
    return this.whole.steps.every((step) => {
      const [first, last] = this.whole.spanAt("step", step);
      return first === last || last < from || first > to;
    });
  }
}
