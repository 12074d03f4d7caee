// Where another scorer took over: vertical lines in the charts, and a list of them.
import { make } from "../lib/elements.js";
import { hasFixedSteps } from "../lib/run_kind.js";

const nameOf = ({ service, grader }) => service ?? (grader ? `the ${grader.type} grader` : "no scorer");

/** [{step, text}] of the scorers that took the first one's place, as far as their steps are known. `turns` are those of `GET .../reward`. */
export function scorerMarks(spec, turns, history) {
  return turns.filter(({ from_group: group }) => group > 0).flatMap(({ from_group: group, scorer }) => {
    const step = hasFixedSteps(spec) ? Math.floor(group / spec.schedule.groups_per_step) : stepAfter(history, group);
    if (step === undefined) return [];
    return [{ step, text: `${hasFixedSteps(spec) ? "Step" : "About step"} ${step}: ${nameOf(scorer)} judges from group ${group} on` }];
  });
}

/** The first step that ended after the run said that from `group` on another scorer judges. */
function stepAfter({ scorers, steps, times }, group) {
  const event = scorers.find(({ data }) => data.from_group === group);
  if (Number.isInteger(event?.step)) return event.step; // the gateway knows every step, also those that are merged here
  const at = event ? times.findIndex((time) => time >= Date.parse(event.created_at)) : -1;
  return at < 0 ? undefined : steps[at];
}

/** Marks by their step, in `charts` and as a list of texts. */
export class Marks {
  #shown = "";

  constructor(charts) {
    this.charts = charts;
    this.element = make("ul", { class: "marks hidden", "aria-label": "changes of the scorer" });
  }

  set(marks) {
    const shown = JSON.stringify(marks);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.element.classList.toggle("hidden", !marks.length);
    this.element.replaceChildren(...marks.map(({ text }) => make("li", {}, text)));
    this.charts.forEach((chart) => chart.mark(marks.map(({ step }) => step)));
  }
}
