// The REST interface, authenticated by the session's cookie.
export class Problem extends Error {
  /** `retryAfter` is in seconds; `faults` are those of a body, each with a path and a message. */
  constructor(status, detail, retryAfter = 0, faults = []) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
    this.faults = faults;
  }
}

/** The response as JSON. Throws Problem with the gateway's detail; with status 0 if the gateway does not respond. */
export async function fetchJson(path, { method = "GET", signal, body: sent, type } = {}) {
  let response;
  try {
    response = await fetch(path, { method, signal, body: sent, headers: { Accept: "application/json", ...(type && { "Content-Type": type }) } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway does not respond. See `gradbus status`.");
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  throw new Problem(response.status, body?.detail ?? `The gateway responded with status ${response.status}.`, retryAfter, body?.errors);
}

/** Fetches `path` every `seconds`, later if the gateway asks for it, and when the tab becomes visible, until `signal` is aborted or `onResponse` returns false. */
export async function poll(path, seconds, signal, onResponse, onError) {
  while (!signal.aborted) {
    let pause = seconds;
    if (!document.hidden) {
      try {
        const response = await fetchJson(path, { signal });
        if (signal.aborted) return;
        if (onResponse(response) === false) return;
      } catch (error) {
        if (error.name === "AbortError") return;
        onError(error);
        if (error.status === 401 || error.status === 404) return;
        // Pages that were refused together come again one after the other.
        pause = Math.max(seconds, error.retryAfter * (1 + Math.random() / 4));
      }
    }
    await sleep(pause, signal);
  }
}

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
