// Where the time goes: the trainer's time as one bar, how busy each role is, and what that means.
import { make, setText } from "./elements.js";
import { percent } from "./words.js";

const PARTS = [["wait", "waits for samples"], ["train", "trains"], ["publish", "publishes"]];
const MUCH = 0.4;
const LITTLE = 0.15;

/** [name, sentence, advice] of what limits a run; null while nothing is known. */
export function verdict(shares) {
  if (shares.wait === undefined) return null;
  const { generate = 0, score = 0 } = shares;
  const waited = percent(shares.wait);
  if (shares.wait >= MUCH && score > generate && score > 0.5)
    return ["Reward-bound", `The trainer waits ${waited} of its time, and the scorer is busy ${percent(score)}.`, "A faster scorer, or several of it, would help most."];
  if (shares.wait >= MUCH)
    return ["Rollout-bound", `The trainer waits ${waited} of its time for samples; rollouts are busy ${percent(generate)}.`, "More rollout workers would help most."];
  if (shares.wait <= LITTLE)
    return ["Train-bound", `The trainer waits only ${waited} of its time; rollouts are busy ${percent(generate)}.`, "A faster trainer would help most; more rollouts would not."];
  return ["In balance", `The trainer waits ${waited} of its time; rollouts are busy ${percent(generate)}.`, "Neither side holds the other up by much."];
}

export class TimeShares {
  constructor() {
    this.parts = Object.fromEntries(PARTS.map(([name]) => [name, { bar: make("span", { class: `share ${name}` }), figure: make("b", { class: "num" }, "–") }]));
    this.headline = make("p", { class: "verdict" }, "Nothing trained yet");
    this.sentence = make("p", { class: "soft" }, "What limits the run is said here once a few steps are trained.");
    this.busy = make("dl", { class: "busy" });
    this.element = make(
      "section", { class: "panel time" },
      make("h2", {}, "Where the time goes"),
      this.headline,
      this.sentence,
      make("div", { class: "shares", "aria-hidden": "true" }, ...PARTS.map(([name]) => this.parts[name].bar)),
      make("ul", { class: "key" }, ...PARTS.map(([name, words]) => make("li", {}, make("i", { class: `dot ${name}` }), this.parts[name].figure, ` ${words}`))),
    );
  }

  set(shares) {
    const found = verdict(shares);
    if (!found) return;
    const [name, sentence, advice] = found;
    setText(this.headline, name);
    setText(this.sentence, `${sentence} ${advice}`);
    for (const [part] of PARTS) {
      this.parts[part].bar.style.flexGrow = shares[part].toFixed(4);
      setText(this.parts[part].figure, percent(shares[part]));
    }
  }
}
