// What happened, in the run's own words: alarms first to be seen, everything newest first.
import { make } from "./elements.js";
import { clock } from "./words.js";

const SHOWN = 60;

export class Told {
  #newest = 0;

  constructor() {
    this.list = make("ol", { class: "told" });
    this.element = make("section", { class: "panel" }, make("h2", {}, "What happened"), this.list);
    this.alarms = make("div", { class: "alarms" });
  }

  set(history, isOver) {
    const events = history.told;
    const newest = events.at(-1)?.id ?? 0;
    if (newest === this.#newest && this.list.childElementCount) return;
    this.#newest = newest;
    this.list.replaceChildren(...events.slice(-SHOWN).reverse().map(line));
    if (!events.length) this.list.append(make("li", { class: "soft" }, "Nothing yet."));
    const alarms = isOver ? [] : events.filter((event) => event.level !== "info" && event.type !== "dropped" && event.type !== "state").slice(-3);
    this.alarms.replaceChildren(...alarms.map((event) => make("p", { class: `note ${event.level === "error" ? "bad" : "warn"}`, role: "alert" }, make("time", { class: "soft small" }, `${clock(event.created_at)}  `), event.message)));
  }
}

function line(event) {
  const level = event.level === "error" ? "bad" : event.level === "warning" ? "warn" : "";
  return make("li", {}, make("time", { class: "soft", datetime: event.created_at }, clock(event.created_at)), make("span", { class: level }, event.message));
}
