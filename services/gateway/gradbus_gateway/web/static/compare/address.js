// The address of a comparison of runs.
import { addressOf } from "../charts/chart_view.js";

export const MOST_RUNS = 6;

/** The address of the comparison of runs; `parameters` are those of its charts. */
export const comparisonOf = (ids, parameters = []) => addressOf("/compare", [["runs", ids.join(",")], ...parameters]);

/** The ids in the address's query. */
export function idsOf(query) {
  const given = (query.get("runs") ?? "").split(",").filter((id) => /^[a-z0-9-]{1,63}$/.test(id));
  return [...new Set(given)].slice(0, MOST_RUNS);
}
