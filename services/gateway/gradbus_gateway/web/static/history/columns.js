// Columns of numbers over steps or versions: rows as they were reported, and buckets of rows, each with two points.

export class Columns {
  /** Ascending; a bucket has its first and its last step. */
  xs = [];
  /** When each was reported, in milliseconds since 1970. */
  times = [];
  /** How many rows a point stands for. */
  weights = [];
  /** By name, as it is drawn: null where there is no value; of a bucket its smallest and its largest value, the later one last. */
  values;
  /** As `values`; of a bucket twice its mean. */
  means;
  /** The first and the last x of each point's bucket. */
  #spans = [];

  constructor(names) {
    this.values = Object.fromEntries(names.map((name) => [name, []]));
    this.means = Object.fromEntries(names.map((name) => [name, []]));
  }

  /** Those of a table of `GET .../history`. */
  static of(names, table) {
    const columns = new Columns(names);
    table.first.forEach((first, at) => columns.#addBucket(table, first, at));
    return columns;
  }

  /** A row; `valueOf(name)` may be undefined. Left out if it is not later than those that there are: a restarted trainer reports steps again. */
  add(x, time, valueOf) {
    if (this.xs.length && x <= this.xs.at(-1)) return;
    this.#addPoint(x, time, 1, [x, x]);
    for (const name of Object.keys(this.values)) {
      const value = valueOf(name) ?? null;
      this.values[name].push(value);
      this.means[name].push(value);
    }
  }

  /** The first and the last x of the bucket that `x` is in; of a row, and where there is none, `x` itself. */
  spanAt(x) {
    const span = this.#spans[this.#lastUpTo(x)];
    return span && x <= span[1] ? span : [x, x];
  }

  #addBucket(table, first, at) {
    const [last, steps, begun, ended] = [table.last[at], table.steps[at], Date.parse(table.first_at[at]), Date.parse(table.last_at[at])];
    const isRow = steps === 1;
    this.#addPoint(first, begun, 1, [first, last]);
    if (!isRow) this.#addPoint(last, ended, steps - 1, [first, last]);
    for (const name of Object.keys(this.values)) {
      const column = table.columns[name];
      const newest = column?.last[at] ?? null;
      const [low, high, mean] = isRow || newest === null ? [newest, newest, newest] : [column.min[at], column.max[at], column.mean[at]];
      const isRising = newest >= (low + high) / 2;
      this.values[name].push(...(isRow ? [newest] : isRising ? [low, high] : [high, low]));
      this.means[name].push(...(isRow ? [newest] : [mean, mean]));
    }
  }

  #addPoint(x, time, weight, span) {
    this.xs.push(x);
    this.times.push(time);
    this.weights.push(weight);
    this.#spans.push(span);
  }

  /** The index of the last point that is not above `x`; -1 if there is none. */
  #lastUpTo(x) {
    let low = 0;
    let high = this.xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.xs[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
