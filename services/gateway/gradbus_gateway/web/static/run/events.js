// The run's events: alarms above the diagram, and a list of all events, newest first.
import { make, withCode } from "../lib/elements.js";
import { clock } from "../lib/format.js";

const MAX_LISTED = 60;
const MAX_ALARMS = 3;

export class EventList {
  #newest = 0;
  #reason = null;

  constructor() {
    this.list = make("ol", { class: "events" });
    this.element = make("section", { class: "panel" }, make("h2", {}, "Events"), this.list);
    this.alarms = make("div", { class: "alarms" });
  }

  /** `reason` of the run's state stands above the alarms, and not among them too. */
  set(history, isOver, reason) {
    const { events } = history;
    const newest = events.at(-1)?.id ?? 0;
    if (newest === this.#newest && reason === this.#reason && this.list.childElementCount) return;
    this.#newest = newest;
    this.#reason = reason;
    this.list.replaceChildren(...events.slice(-MAX_LISTED).reverse().map(line));
    if (!events.length) this.list.append(make("li", { class: "soft" }, "No events yet."));
    const alarms = isOver ? [] : events.filter((event) => event.level !== "info" && event.type !== "dropped" && event.type !== "state" && event.message !== reason).slice(-MAX_ALARMS);
    this.alarms.replaceChildren(...alarms.map((event) => make("p", { class: `note ${event.level === "error" ? "bad" : "warn"}`, role: "alert" }, make("time", { class: "soft small" }, `${clock(event.created_at)}  `), ...withCode(event.message))));
  }
}

function line(event) {
  const level = event.level === "error" ? "bad" : event.level === "warning" ? "warn" : "";
  return make("li", {}, make("time", { class: "soft", datetime: event.created_at }, clock(event.created_at)), make("span", { class: level }, ...withCode(event.message)));
}
