// Reads a run's events into its history: all at once, or live by server-sent events.
import { fetchJson } from "../lib/api.js";
import { RunHistory } from "./run_history.js";

const TYPES = ["metrics", "state", "evaluation", "checkpoint", "alarm", "diverged", "unchanged", "dropped", "broadcast", "learner", "scorer", "unreadable"];
const NOTIFY_MS = 150;
const MAX_PAUSE_MS = 60_000;
const BATCH = 1000;
const MAX_BATCHES = 20;
const cache = { runId: "", history: null };

/** The history of a run, which its views share, so that each reads only newer events. */
export function historyOf(runId) {
  if (cache.runId !== runId) Object.assign(cache, { runId, history: new RunHistory() });
  return cache.history;
}

/** Reads the events that a history lacks, up to `MAX_BATCHES` thousand; returns whether these are all. */
export async function loadHistory(runId, history, signal) {
  for (let batch = 0; batch < MAX_BATCHES; batch += 1) {
    const page = await fetchJson(`/v1/runs/${runId}/events?after=${history.newest}&limit=${BATCH}`, { signal });
    page.data.forEach((event) => history.add(event));
    if (!page.has_more) return true;
  }
  return false;
}

/** Follows a run's events until `signal` is aborted or `isOver` returns true. Calls `onChange` a few times a second at most. */
export function followEvents(runId, history, signal, onChange, isOver) {
  let source = null;
  let timer = 0;
  let refusals = 0;
  const notify = () => {
    timer ||= setTimeout(() => {
      timer = 0;
      if (!signal.aborted) onChange();
    }, NOTIFY_MS);
  };
  const onEvent = (message) => {
    history.add(JSON.parse(message.data));
    notify();
  };
  const open = () => {
    if (source || signal.aborted || document.hidden) return;
    source = new EventSource(`/v1/runs/${runId}/events?after=${history.newest}`);
    for (const type of TYPES) source.addEventListener(type, onEvent);
    source.onmessage = onEvent;
    source.onopen = () => {
      refusals = 0;
    };
    source.onerror = () => {
      // The stream of a run that is over has ended for good; any other is opened again, a refused one after growing pauses.
      const isRefused = source.readyState === EventSource.CLOSED;
      close();
      const pause = isRefused ? Math.min(3000 * 2 ** refusals, MAX_PAUSE_MS) * (1 + Math.random() / 4) : 500;
      refusals += isRefused ? 1 : 0;
      if (!isOver()) setTimeout(open, pause);
    };
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const onVisibility = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", onVisibility);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisibility);
    close();
  });
  open();
}
