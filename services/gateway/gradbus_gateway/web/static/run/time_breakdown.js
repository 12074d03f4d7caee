// What limits the run: the trainer's time as one bar, how busy the rollouts, the scorer and the reference are, and the bottleneck that follows.
import { make, setText } from "../lib/elements.js";
import { percent } from "../lib/format.js";

const PARTS = [["wait", "waiting for samples"], ["train", "training"], ["publish", "publishing"]];
const HIGH_WAIT = 0.4;
const LOW_WAIT = 0.15;

/** [name, sentence, advice] of the run's bottleneck; null before the first step. */
function bottleneck(shares) {
  if (shares.wait === undefined) return null;
  const { generate = 0, score = 0, reference = 0 } = shares;
  const wait = percent(shares.wait);
  const rollouts = shares.generate === undefined ? "" : `; rollouts are busy ${percent(generate)}`;
  if (shares.wait >= HIGH_WAIT && reference > Math.max(generate, score) && reference > 0.5)
    return ["Reference-bound", `The trainer waits ${wait} of its time, and the reference is busy ${percent(reference)}.`, "A faster device for the reference service, or several replicas of it, would help most. With adapters (trainer.lora) a run needs none."];
  if (shares.wait >= HIGH_WAIT && score > generate && score > 0.5)
    return ["Reward-bound", `The trainer waits ${wait} of its time, and the scorer is busy ${percent(score)}.`, "A faster scorer, or several replicas of it, would help most."];
  if (shares.wait >= HIGH_WAIT)
    return ["Rollout-bound", `The trainer waits ${wait} of its time for samples${rollouts}.`, "More rollout workers would help most."];
  if (shares.wait <= LOW_WAIT)
    return ["Train-bound", `The trainer waits only ${wait} of its time${rollouts}.`, "A faster trainer would help most; more rollout workers would not."];
  return ["In balance", `The trainer waits ${wait} of its time${rollouts}.`, "Neither the trainer nor the rollouts slow the other down by much."];
}

export class TimeBreakdown {
  constructor() {
    this.parts = Object.fromEntries(PARTS.map(([name]) => [name, { bar: make("span", { class: `share ${name}` }), figure: make("b", { class: "num" }, "–") }]));
    this.headline = make("p", { class: "bottleneck" }, "No step yet");
    this.sentence = make("p", { class: "soft" }, "The bottleneck is shown once a few steps are trained.");
    this.element = make(
      "section", { class: "panel time-breakdown" },
      make("h2", {}, "Where the time goes"),
      this.headline,
      this.sentence,
      make("div", { class: "shares", "aria-hidden": "true" }, ...PARTS.map(([name]) => this.parts[name].bar)),
      make("ul", { class: "key" }, ...PARTS.map(([name, text]) => make("li", {}, make("i", { class: `dot ${name}` }), this.parts[name].figure, ` ${text}`))),
    );
  }

  set(shares, isOver) {
    const found = bottleneck(shares);
    if (!found) {
      if (isOver) setText(this.headline, "No step");
      if (isOver) setText(this.sentence, "The run ended before its first step.");
      return;
    }
    const [name, sentence, advice] = found;
    setText(this.headline, name);
    setText(this.sentence, `${sentence} ${advice}`);
    for (const [part] of PARTS) {
      this.parts[part].bar.style.flexGrow = shares[part].toFixed(4);
      setText(this.parts[part].figure, percent(shares[part]));
    }
  }
}
