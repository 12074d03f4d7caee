// The REST interface, by the session's cookie.
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The answer as JSON. Throws Problem with what the gateway said; status 0 when it does not answer. */
export async function ask(path, { method = "GET", signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway does not answer. See `gradbus status`.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok) return body;
  throw new Problem(answer.status, body?.detail ?? `The gateway answered with status ${answer.status}.`);
}

/** `ask` again and again until `signal` is aborted: `seconds` apart, at once when the tab is looked at again. */
export async function poll(path, seconds, signal, take, fail) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        const answer = await ask(path, { signal });
        if (signal.aborted) return;
        if (take(answer) === false) return;
      } catch (error) {
        if (error.name === "AbortError") return;
        fail(error);
        if (error.status === 401 || error.status === 404) return;
      }
    }
    await pause(seconds, signal);
  }
}

function pause(seconds, signal) {
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
