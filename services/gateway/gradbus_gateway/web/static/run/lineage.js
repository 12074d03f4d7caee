// Where the run's model comes from, and the runs that start from it. A lineage grows rarely, so it is read seldom.
import { poll } from "../lib/api.js";
import { make } from "../lib/elements.js";
import { stateClass, stateText } from "../lib/format.js";

const PERIOD_SECONDS = 15;

export class LineagePanel {
  constructor() {
    this.content = make("div");
    this.element = make("section", { class: "panel lineage hidden" }, make("h2", {}, "Lineage"), this.content);
  }

  /** Keeps the panel current until `signal` is aborted. It is hidden while the run has neither parent nor child. */
  follow(runId, signal) {
    poll(`/v1/runs/${runId}/lineage`, PERIOD_SECONDS, signal, (found) => this.#set(found), () => {});
  }

  #set({ base, ancestors, reward_model, teacher, children, has_more }) {
    this.element.classList.toggle("hidden", !ancestors.length && !reward_model.length && !teacher.length && !children.length);
    const parent = ancestors.at(-1);
    const scorer = reward_model.at(-1);
    const taught = teacher.at(-1);
    this.content.replaceChildren(
      make("p", {}, "From ", make("span", { class: "mono" }, base), ...ancestors.flatMap((run) => [" → ", name(run), ` version ${run.version}`])),
      parent ? make("p", { class: "soft small" }, `It begins with the weights ${parent.digest}.`) : "",
      scorer ? make("p", {}, "Scored by ", name(scorer), ` version ${scorer.version}`) : "",
      taught ? make("p", {}, "Taught by ", name(taught), ` version ${taught.version}`) : "",
      children.length ? make("ul", {}, ...children.map(child)) : "",
      has_more ? make("p", { class: "soft small" }, "Older runs that start from it are not listed.") : "",
    );
  }
}

const VERBS = { model: "starts from", reward_model: "is scored by", teacher: "is taught by" };

function child(run) {
  return make("li", {}, name(run), ` ${VERBS[run.role]} version ${run.version} `, make("span", { class: stateClass(run.state) }, stateText(run.state)[0]));
}

function name(run) {
  return run.state === "deleted" ? `${run.name} (deleted)` : make("a", { href: `#/runs/${run.id}`, title: run.id }, run.name || run.id);
}
