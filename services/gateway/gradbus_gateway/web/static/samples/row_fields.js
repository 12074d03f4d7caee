// The row of the dataset beside the samples of its prompt: the right answer, and what else the scorer sees.
import { make } from "../lib/elements.js";

/** A list of fields, or nothing; `fields`: [[name, text]]. */
export function rowFields(fields) {
  if (!fields.length) return false;
  return make("dl", { class: "row-fields" }, ...fields.flatMap(([name, text]) => [make("dt", { class: "soft small" }, name), make("dd", {}, make("pre", {}, text))]));
}
