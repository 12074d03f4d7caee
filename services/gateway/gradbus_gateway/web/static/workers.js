// Who works for a run, and which version each holds.
import { make } from "./elements.js";
import { percent } from "./words.js";

export class Workers {
  constructor() {
    this.body = make("tbody");
    this.empty = make("p", { class: "soft" }, "No worker serves this run now.");
    this.table = make(
      "table", { class: "workers" },
      make("thead", {}, make("tr", {}, ...["Worker", "Version", "Busy", "Doing"].map((text, at) => make("th", { scope: "col", class: at === 1 || at === 2 ? "right" : null }, text)))),
      this.body,
    );
    this.element = make("section", { class: "panel" }, make("h2", {}, "Workers"), this.table, this.empty);
  }

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
    make("td", { class: "right" }, percent(busy)),
    make("td", {}, worker.trouble ? make("span", { class: "bad" }, worker.trouble) : doing(worker)),
  );
}

function doing(worker) {
  if (worker.role === "trainer") return "trains";
  const parts = [];
  if (worker.claims.length) parts.push(`${worker.claims.length} groups`);
  if (worker.evaluation_claims.length) parts.push(`${worker.evaluation_claims.length} held-out rows`);
  return parts.length ? `samples ${parts.join(", ")}` : make("span", { class: "soft" }, "waits for work");
}
