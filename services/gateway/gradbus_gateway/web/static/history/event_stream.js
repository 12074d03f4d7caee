// Follows a run's events by server-sent events.
const TYPES = ["metrics", "state", "evaluation", "checkpoint", "alarm", "diverged", "unchanged", "dropped", "broadcast", "learner", "scorer", "unreadable"];
const NOTIFY_MS = 150;
const MAX_PAUSE_MS = 60_000;

/** Adds a run's events to `history` ({newest, add}), those after its newest, until `signal` is aborted or `isOver` returns true. Calls `onChange` a few times a second at most. */
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
