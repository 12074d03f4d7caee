// Why the gateway refused a request, as a user reads it.
import { make, withCode } from "./elements.js";

/** An error's message and, below it, each fault of what was sent. */
export function explanationOf({ message, faults = [] }) {
  const lines = faults.map((fault) => make("li", {}, make("code", {}, fault.path), ` ${fault.message}`));
  return [make("p", {}, ...withCode(message)), ...(lines.length ? [make("ul", {}, ...lines)] : [])];
}
