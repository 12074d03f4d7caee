// One sample as a card: its response, and its reward and advantage or its label.
import { make } from "../lib/elements.js";
import { shadedTokens } from "./tokens.js";
import { number, signed } from "../lib/format.js";
import { readsRewards, trainsGiven } from "../lib/run_kind.js";

/** [lowest, highest] reward, with 0 included: one scale for the bars of all samples that are shown. */
export function rewardRange(samples) {
  const rewards = samples.map((sample) => sample.reward).filter((reward) => reward !== null);
  return [Math.min(0, ...rewards), Math.max(0, ...rewards)];
}

/** `colour`: "", "probability" or "advantage"; `texts`: of the tokens, for their colours; `range`: of the reward bar. */
export function sampleCard(run, sample, { colour, texts, range }) {
  const tone = colour === "advantage" && sample.advantage ? (sample.advantage > 0 ? "better" : "worse") : "";
  const strength = tone ? Math.min(4, Math.ceil(Math.abs(sample.advantage) * 2)) : "";
  return make(
    "li", { class: "sample" },
    make("a", { class: `response-text ${tone}${strength}`, href: `#/runs/${run.id}/samples/${sample.id}`, "aria-label": `sample ${sample.id}: ${sample.text || "empty"}` },
      ...(colour === "probability" ? shadedTokens(sample, texts) : [sample.text || make("span", { class: "soft" }, "(empty)")])),
    readsRewards(run.spec) ? rewardBar(sample, range) : make("p", { class: "label" }, sample.label ?? ""),
    make("p", { class: "soft small" }, details(run, sample)),
  );
}

function rewardBar(sample, [low, high]) {
  if (sample.reward === null) return make("p", { class: "reward warn" }, sample.reward_status === "none" ? "not scored" : sample.reward_status);
  const share = high > low ? (sample.reward - low) / (high - low) : 0;
  return make("p", { class: "reward num" }, number(sample.reward), make("meter", { min: 0, max: 1, value: share, "aria-label": "reward, relative to the samples shown" }));
}

/** Whether a sample of a group that is trained is left out of its step. */
export function isMasked(run, sample) {
  if (trainsGiven(run.spec)) return false;
  return (sample.reward === null && readsRewards(run.spec)) || (sample.finish_reason === "length" && run.spec.algorithm.truncated === "mask");
}

function details(run, sample) {
  const parts = Object.entries(sample.components).map(([name, value]) => `${name} ${number(value)}`);
  const trained = sample.advantage === null || trainsGiven(run.spec) ? [] : [`advantage\u00a0${signed(sample.advantage)}`];
  const outcome = sample.verdict === "train" ? (isMasked(run, sample) ? ["masked"] : trained) : [sample.verdict];
  return [...(readsRewards(run.spec) && sample.label ? [sample.label] : []), ...parts, ...outcome, ...(sample.finish_reason === "stop" ? [] : ["truncated"])].join(" · ");
}
