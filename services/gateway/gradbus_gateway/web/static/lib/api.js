// The REST interface, authenticated by the session's cookie.
/** Statuses that pass: no response or a part of one, too many requests, and a gateway or what is behind it that is away. */
const PASSING = new Set([0, 429, 502, 503, 504]);
const LEAST_PAUSE_SECONDS = 2;

export class Problem extends Error {
  /** `retryAfter` is in seconds; `faults` are those of a body, each with a path and a message. */
  constructor(status, detail, retryAfter = 0, faults = []) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
    this.faults = faults;
  }
}

/** The response as JSON. Throws Problem with the gateway's detail; with status 0 if the gateway does not respond, or its answer cannot be read. */
export async function fetchJson(path, { method = "GET", signal, body: sent, type } = {}) {
  let response;
  try {
    response = await fetch(path, { method, signal, body: sent, headers: { Accept: "application/json", ...(type && { "Content-Type": type }) } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway does not respond. See `gradbus status`.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response.ok) throw new Problem(0, "The gateway's answer was cut off. See `gradbus status`.");
  }
  if (response.ok) return body;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  throw new Problem(response.status, body?.detail ?? `The gateway responded with status ${response.status}.`, retryAfter, body?.errors);
}

/** As `fetchJson`, but asks again after a pause for as long as the gateway does not respond or refuses for now. Throws other errors. */
export async function fetchPatiently(path, signal) {
  for (;;) {
    try {
      return await fetchJson(path, { signal });
    } catch (error) {
      if (!PASSING.has(error.status)) throw error;
      await sleep(Math.max(LEAST_PAUSE_SECONDS, spread(error.retryAfter)), signal);
      signal.throwIfAborted();
    }
  }
}

/** Fetches `path` every `seconds`, later if the gateway asks for it, and when the tab becomes visible, until `signal` is aborted or `onResponse` returns false, or a promise of it. An error that this promise rejects with counts as one of the fetch. */
export async function poll(path, seconds, signal, onResponse, onError) {
  while (!signal.aborted) {
    let pause = seconds;
    if (!document.hidden) {
      try {
        const response = await fetchJson(path, { signal });
        if (signal.aborted) return;
        if ((await onResponse(response)) === false) return;
      } catch (error) {
        if (error.name === "AbortError") return;
        onError(error);
        if (error.status === 401 || error.status === 404) return;
        pause = Math.max(seconds, spread(error.retryAfter));
      }
    }
    await sleep(pause, signal);
  }
}

/** Seconds, longer at random: pages that were refused together come again one after the other. */
const spread = (seconds) => seconds * (1 + Math.random() / 4);

function sleep(seconds, signal) {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
      signal.removeEventListener("abort", wake);
      resolve();
    };
    const timer = setTimeout(wake, seconds * 1000);
    document.addEventListener("visibilitychange", wake);
    signal.addEventListener("abort", wake);
  });
}
