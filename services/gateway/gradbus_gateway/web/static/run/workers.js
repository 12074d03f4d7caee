// The workers of a run: their versions, how busy they are, and what they do.
import { make } from "../lib/elements.js";
import { percent } from "../lib/format.js";

export class WorkerTable {
  constructor() {
    this.body = make("tbody");
    this.empty = make("p", { class: "soft" }, "No worker serves this run at the moment.");
    this.table = make(
      "table", { class: "workers" },
      make("thead", {}, make("tr", {}, ...["Worker", "Version", "Busy", "Activity"].map((text, at) => make("th", { scope: "col", class: at === 1 || at === 2 ? "right" : null }, text)))),
      this.body,
    );
    this.element = make("section", { class: "panel" }, make("h2", {}, "Workers"), this.table, this.empty);
  }

  /** `newest`: newest published version; `shares.train`: the trainer's share of time in steps. */
  set(workers, newest, shares) {
    this.table.classList.toggle("hidden", workers.length === 0);
    this.empty.classList.toggle("hidden", workers.length > 0);
    this.body.replaceChildren(...workers.map((worker) => row(worker, newest, worker.role === "trainer" ? shares.train : worker.busy)));
  }
}

function row(worker, newest, busy) {
  const behind = newest - worker.version;
  const version = worker.version < 0 ? "–" : `${worker.version}`;
  const lag = worker.role === "rollout" && worker.version >= 0 && behind > 0 ? make("span", { class: "soft small" }, ` −${behind}`) : "";
  return make(
    "tr", {},
    make("td", {}, worker.worker, make("div", { class: "soft small" }, [worker.role, worker.engine].filter(Boolean).join(", "))),
    make("td", { class: "right" }, version, lag),
    make("td", { class: "right" }, isReading(worker) ? "–" : percent(busy)),
    make("td", {}, worker.trouble ? make("span", { class: "bad" }, worker.trouble) : activity(worker)),
  );
}

/** Whether it reads given responses: it has no engine that could be busy. */
const isReading = (worker) => worker.engine === "dataset";

function activity(worker) {
  if (worker.preparing) return make("span", { class: "soft" }, worker.preparing);
  if (worker.role === "trainer") return "training";
  const parts = [];
  if (worker.claims.length) parts.push(`${worker.claims.length} groups`);
  if (worker.evaluation_claims.length) parts.push(`${worker.evaluation_claims.length} held-out rows`);
  return parts.length ? `${isReading(worker) ? "reading" : "sampling"} ${parts.join(", ")}` : make("span", { class: "soft" }, "idle");
}
