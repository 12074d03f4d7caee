// Formats numbers, times and states.
const STATES = {
  queued: ["Queued", "waiting for a free trainer"],
  starting: ["Starting", "the model is loaded, or a service has not answered yet"],
  running: ["Running", ""],
  paused: ["Paused", "deadlines are suspended; Resume continues where it stopped"],
  waiting_for_reward: ["Waiting for rewards", "the scorer or the reference service fails, or is slow"],
  waiting_for_environment: ["Waiting for its environment", "the environment does not answer, or no agent plays"],
  evaluating: ["Evaluating", "the held-out rows, by the last version"],
  cancelling: ["Cancelling", "its tasks are being removed"],
  succeeded: ["Succeeded", ""],
  failed: ["Failed", ""],
  cancelled: ["Cancelled", "its versions and checkpoints are kept"],
  unreadable: ["Unreadable", "its stored record cannot be read"],
};
const CHIPS = { running: "live", starting: "live", evaluating: "live", succeeded: "done", waiting_for_reward: "alert", waiting_for_environment: "alert", cancelling: "alert", failed: "broken", unreadable: "broken" };
export const FINAL = new Set(["succeeded", "failed", "cancelled", "unreadable"]);

/** [name, explanation] of a run's state. */
export const stateText = (state) => STATES[state] ?? [state, ""];
export const stateClass = (state) => `chip ${CHIPS[state] ?? ""}`;

/** A number with a few significant digits; a dash for null and for values that are not finite. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 10 ** -digits) return value.toExponential(1);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(size >= 1e5 ? 0 : 1)} k`;
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? Math.min(1, digits) : digits });
}

/** A number with a fixed number of digits, so that a live figure does not jump. */
export const fixed = (value, digits = 3) => (value === null || value === undefined || !Number.isFinite(value) ? "–" : value.toFixed(digits));
export const percent = (share) => (share === null || share === undefined || !Number.isFinite(share) ? "–" : `${Math.round(share * 100)} %`);
export const signed = (value, digits = 2) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);

/** Seconds as `180 ms`, `42 s`, `3 min 5 s`, `2 h 10 min`, `4 days`. */
export function duration(seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return minutes < 5 && seconds % 60 >= 1 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** How long ago `time` was, roughly. */
export function age(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds / 5) * 5} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} days ago`;
}

/** Time of day, to the millisecond if `exact`. */
export function clock(time, exact = false) {
  const at = new Date(time);
  const day = at.toLocaleTimeString("en-GB");
  return exact ? `${day}.${String(at.getMilliseconds()).padStart(3, "0")}` : day;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
