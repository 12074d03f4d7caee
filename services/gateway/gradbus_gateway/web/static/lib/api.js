// The REST interface, authenticated by the session's cookie.
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The response as JSON. Throws Problem with the gateway's detail; with status 0 if the gateway does not respond. */
export async function fetchJson(path, { method = "GET", signal } = {}) {
  let response;
  try {
    response = await fetch(path, { method, signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway does not respond. See `gradbus status`.");
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  throw new Problem(response.status, body?.detail ?? `The gateway responded with status ${response.status}.`);
}

/** Fetches `path` every `seconds`, and when the tab becomes visible, until `signal` is aborted or `onResponse` returns false. */
export async function poll(path, seconds, signal, onResponse, onError) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        const response = await fetchJson(path, { signal });
        if (signal.aborted) return;
        if (onResponse(response) === false) return;
      } catch (error) {
        if (error.name === "AbortError") return;
        onError(error);
        if (error.status === 401 || error.status === 404) return;
      }
    }
    await sleep(seconds, signal);
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
