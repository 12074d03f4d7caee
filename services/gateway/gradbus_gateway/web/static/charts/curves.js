// What is drawn of a chart's data.
const isThere = (value) => value !== null && value !== undefined;

/** The exponential mean of `values`, over about the share `part` of those that there are; null where there is none. */
export function smoothed(values, part) {
  const weight = Math.min(1, 2 / (part * (values.filter(isThere).length + 1)));
  let mean = null;
  return values.map((value) => {
    if (!isThere(value)) return null;
    mean = mean === null ? value : mean + weight * (value - mean);
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
