// What is drawn of a chart's data.
const isThere = (value) => value !== null && value !== undefined;

/** The exponential mean of `values`, over about the share `part` of the steps that have one; null where there is none. `weights` are the steps that each value stands for. */
export function smoothed(values, part, weights = values.map(() => 1)) {
  const steps = values.reduce((sum, value, at) => sum + (isThere(value) ? weights[at] : 0), 0);
  const weight = Math.min(1, 2 / (part * (steps + 1)));
  let mean = null;
  return values.map((value, at) => {
    if (!isThere(value)) return null;
    mean = mean === null ? value : mean + (1 - (1 - weight) ** weights[at]) * (value - mean);
    return mean;
  });
}

/** `data` with what a logarithm has: values that are not above 0 are left out. */
export function positive([steps, ...series]) {
  return [steps, ...series.map((values) => values.map((value) => (value > 0 ? value : null)))];
}

/** The index of the series with the value that is nearest to `value` at the index `at`; -1 if none has one. */
export function nearest(series, at, value) {
  const distances = series.map((values) => (Number.isFinite(values[at]) ? Math.abs(values[at] - value) : Infinity));
  const least = Math.min(...distances);
  return least === Infinity ? -1 : distances.indexOf(least);
}

/** Columns [xs, ys] with ascending xs (null: an empty one) over the same xs: [xs, ...ys], null where a column has no value. */
export function joined(columns) {
  const places = columns.map(() => 0);
  const xs = [];
  const lines = columns.map(() => []);
  for (;;) {
    let next = Infinity;
    columns.forEach((column, at) => {
      if (column && places[at] < column[0].length) next = Math.min(next, column[0][places[at]]);
    });
    if (next === Infinity) return [xs, ...lines];
    xs.push(next);
    columns.forEach((column, at) => {
      const hasValue = column && column[0][places[at]] === next;
      lines[at].push(hasValue ? column[1][places[at]] ?? null : null);
      if (hasValue) places[at] += 1;
    });
  }
}
