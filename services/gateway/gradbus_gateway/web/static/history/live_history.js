// The history that charts show: of all steps, and of those that are zoomed to, each as many points as a chart has room for.
import { fetchJson, fetchPatiently } from "../lib/api.js";
import { COLUMNS, RunHistory } from "./run_history.js";

const POINTS = 500;
const EVENTS = 400;
/** So many steps are added one by one before the history is read again. */
const MOST_ADDED = 1000;
/** So many events are read at a time, and the newest are kept: an answer that is on its way may lack them. */
const BATCH = 1000;
const SETTLED_MS = 120;

const pathOf = (runId, parts) => `/v1/runs/${runId}/history?${new URLSearchParams([["points", POINTS], ...parts, ...COLUMNS.map((name) => ["column", name])])}`;

/** Whether an event is metrics, or an evaluation, of the steps, or versions, that are zoomed to. */
function isWithin([from, to], { type, data }) {
  const x = { metrics: data.step, evaluation: data.version }[type];
  return x >= from && x <= to;
}

export class LiveHistory {
  /** All steps. */
  whole = new RunHistory();
  /** Whether the gateway had read all events once. */
  isWhole = false;
  #part = null;
  #recent = [];
  #loading = null;
  #problem = "";
  /** With more added steps than these the whole is read again. */
  #due = MOST_ADDED;
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

  get newest() {
    return this.whole.newest;
  }

  /** Why the charts of the run `name` lack steps; empty if they have all. */
  noticeOf(name) {
    if (this.#problem) return `The history of ${name} cannot be read, so its curves may lack steps; load the page again to read it. The reason: ${this.#problem}`;
    return this.isWhole || !this.newest ? "" : `The curves of ${name} end at step ${this.whole.steps.at(-1) ?? 0}, because it has many events: the rest is being read.`;
  }

  /** Reads all steps. If that fails, `noticeOf` says why, and events can be added all the same. */
  async read() {
    try {
      await this.#load((path) => fetchPatiently(path, this.signal));
    } catch (error) {
      this.#tell(error, this.signal);
    }
  }

  /** Reads what came since, all of it the first time. Throws Problem. */
  async update() {
    const ask = (path) => fetchJson(path, { signal: this.signal });
    if (!this.isWhole) return this.#load(ask);
    for (;;) {
      const page = await ask(`/v1/runs/${this.runId}/events?after=${this.newest}&limit=${BATCH}`);
      page.data.forEach((event) => this.add(event));
      if (!page.has_more) return this.onChange();
      await this.#load(ask);
    }
  }

  add(event) {
    this.#recent.push(event);
    if (this.#recent.length > BATCH) this.#recent.shift();
    this.whole.add(event);
    if (this.#part && isWithin(this.view.zoom, event)) this.#part.add(event);
    if (this.whole.added > this.#due && !this.#loading) this.read();
  }

  /** Reads all steps, and those that are zoomed to after them; once at a time, however often it is called. */
  #load(ask) {
    this.#loading ??= this.#loadWhole(ask).finally(() => {
      this.#loading = null;
    });
    return this.#loading;
  }

  /** While the gateway itself still reads, what it has is shown if it is as much as there is already. */
  async #loadWhole(ask) {
    this.#due = this.whole.added + MOST_ADDED;
    for (let isRead = false; !isRead; ) {
      const found = await ask(pathOf(this.runId, [["events", EVENTS]]));
      isRead = found.is_whole;
      if (isRead || found.newest >= this.newest) this.#show(found);
    }
    this.#readPart();
  }

  #show(found) {
    const whole = RunHistory.of(found);
    this.#recent.forEach((event) => whole.add(event));
    this.whole = whole;
    this.isWhole ||= found.is_whole;
    this.#due = MOST_ADDED;
    this.#problem = "";
    this.onChange();
  }

  /** Until the steps that are zoomed to are there, they are those of the whole. */
  #zoom() {
    if (this.#part) {
      this.#part = null;
      this.onChange();
    }
    this.#readPart();
  }

  /** Reads the steps that are zoomed to, once the zoom rests, until the gateway has them all; what is shown of them stays till then. */
  async #readPart() {
    this.#zooming.abort();
    this.#zooming = new AbortController();
    const { zoom } = this.view;
    if (!zoom || !this.isWhole || this.#isExact(zoom)) return;
    const signal = AbortSignal.any([this.signal, this.#zooming.signal]);
    try {
      await new Promise((wake) => setTimeout(wake, SETTLED_MS));
      while (!signal.aborted) {
        const found = await fetchPatiently(pathOf(this.runId, [["from", zoom[0]], ["to", zoom[1]]]), signal);
        if (found.is_whole && !signal.aborted) return this.#showPart(found, zoom);
      }
    } catch (error) {
      this.#tell(error, signal);
    }
  }

  #showPart(found, zoom) {
    // Its newest event may be later than the last step that was asked for, and events that came meanwhile may be among its steps.
    const part = RunHistory.of({ ...found, newest: 0 });
    this.#recent.filter((event) => isWithin(zoom, event)).forEach((event) => part.add(event));
    this.#part = part;
    this.#problem = "";
    this.onChange();
  }

  #tell(error, signal) {
    if (signal.aborted) return; // the view, or the zoom, was left
    this.#problem = error.message;
    this.onChange();
  }

  /** Whether the whole has each of these steps as a point. */
  #isExact([from, to]) {
    return this.whole.steps.every((step) => {
      const [first, last] = this.whole.spanAt("step", step);
      return first === last || last < from || first > to;
    });
  }
}
