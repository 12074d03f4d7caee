// One sample as a card: what the model said and what it was worth.
import { make } from "./elements.js";
import { shaded } from "./tokens.js";
import { number, signed } from "./words.js";

/** From the lowest reward, or 0, to the highest: one scale for all bars that stand side by side. */
export function rewardRange(samples) {
  const rewards = samples.map((sample) => sample.reward).filter((reward) => reward !== null);
  return [Math.min(0, ...rewards), Math.max(0, ...rewards)];
}

/** `colour`: "", "probability" or "advantage"; `range`: lowest and highest reward shown, for the bar. */
export function card(run, sample, { colour, pieces, range }) {
  const tone = colour === "advantage" && sample.advantage ? (sample.advantage > 0 ? "better" : "worse") : "";
  const strength = tone ? Math.min(4, Math.ceil(Math.abs(sample.advantage) * 2)) : "";
  return make(
    "li", { class: "sample" },
    make("a", { class: `said ${tone}${strength}`, href: `#/runs/${run.id}/samples/${sample.id}`, "aria-label": `sample ${sample.id}: ${sample.text || "nothing"}` },
      ...(colour === "probability" ? shaded(sample, pieces) : [sample.text || make("span", { class: "soft" }, "(nothing)")])),
    worth(sample, range),
    make("p", { class: "soft small" }, details(sample)),
  );
}

function worth(sample, [low, high]) {
  if (sample.reward === null) return make("p", { class: "worth warn" }, sample.reward_status === "none" ? "not judged" : sample.reward_status);
  const share = high > low ? (sample.reward - low) / (high - low) : 0;
  return make("p", { class: "worth num" }, number(sample.reward), make("meter", { min: 0, max: 1, value: share, "aria-label": "reward among those shown" }));
}

function details(sample) {
  const parts = Object.entries(sample.components).map(([name, value]) => `${name} ${number(value)}`);
  const worth = sample.verdict === "train" ? (sample.advantage === null ? ["masked"] : [`advantage\u00a0${signed(sample.advantage)}`]) : [sample.verdict];
  return [...parts, ...worth, ...(sample.finish_reason === "stop" ? [] : ["cut off"])].join(" · ");
}
