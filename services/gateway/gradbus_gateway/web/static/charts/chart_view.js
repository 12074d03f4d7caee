// How all charts of a page are shown: which steps, on which scale, how smooth. It is kept in the address.
const SCALES = ["linear", "log"];
/** By name: over which part of a curve its exponential mean reaches; null leaves the curve as it is. */
export const SMOOTHINGS = { none: null, light: 1 / 200, usual: 1 / 50, strong: 1 / 10 };
const LEAST_STEPS = 2;

export class ChartView {
  #listeners = [];

  constructor(query = new URLSearchParams()) {
    const [from, to] = ["from", "to"].map((name) => (/^\d{1,15}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null));
    /** [from, to], or null for all steps. */
    this.zoom = from !== null && to > from ? [from, to] : null;
    this.scale = SCALES.includes(query.get("scale")) ? query.get("scale") : "linear";
    this.smoothing = Object.hasOwn(SMOOTHINGS, query.get("smoothing") ?? "") ? query.get("smoothing") : "usual";
  }

  /** The reverse of the constructor, without what is usual: [name, value] of each parameter. */
  parameters() {
    return [
      ...(this.zoom ? [["from", this.zoom[0]], ["to", this.zoom[1]]] : []),
      ...(this.scale === "linear" ? [] : [["scale", this.scale]]),
      ...(this.smoothing === "usual" ? [] : [["smoothing", this.smoothing]]),
    ];
  }

  /** Calls `listener` with the names of what `change` changed. */
  listen(listener) {
    this.#listeners.push(listener);
  }

  /** Sets some of `zoom`, `scale` and `smoothing`. */
  change(changes) {
    Object.assign(this, changes);
    this.#listeners.forEach((listener) => listener(Object.keys(changes)));
  }
}

/** The address of a view with these parameters: [name, value] of each. */
export function addressOf(path, parameters) {
  const query = parameters.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return query ? `#${path}?${query}` : `#${path}`;
}

/** What a key makes of a range of steps within `whole`, around the step `at`; null is the whole, undefined no change. */
export function zoomed(key, [from, to], whole, at) {
  const width = to - from;
  if (key === "0" || key === "Escape") return null;
  if (width <= 0) return undefined;
  if (key === "+" || key === "=") return width / 2 < LEAST_STEPS ? undefined : within(at, width / 2, (at - from) / width, whole);
  if (key === "-") return within(at, width * 2, (at - from) / width, whole);
  if (key === "Shift+ArrowLeft" || key === "Shift+ArrowRight") {
    const by = (key === "Shift+ArrowLeft" ? -1 : 1) * Math.max(1, Math.round(width / 4));
    const start = Math.min(Math.max(whole[0], from + by), Math.max(whole[0], whole[1] - width));
    return start === from ? undefined : [start, start + width];
  }
  return undefined;
}

/** A range of `width` steps in which `at` stands at `share`; null if that is the whole. */
function within(at, width, share, [first, last]) {
  const from = Math.max(first, Math.round(at - width * share));
  const to = Math.min(last, Math.round(at + width * (1 - share)));
  return from <= first && to >= last ? null : [from, to];
}

/** Where a key moves the cursor among ascending `steps` from the index `at` (null: nowhere); undefined for other keys. */
export function moved(key, steps, [from, to], at) {
  const low = steps.findIndex((step) => step >= from);
  const high = steps.findLastIndex((step) => step <= to);
  if (low < 0 || high < low) return undefined;
  const inside = (index) => Math.min(high, Math.max(low, index));
  if (key === "Home") return low;
  if (key === "End") return high;
  if (key === "ArrowLeft") return at === null ? high : inside(at - 1);
  if (key === "ArrowRight") return at === null ? low : inside(at + 1);
  return undefined;
}
