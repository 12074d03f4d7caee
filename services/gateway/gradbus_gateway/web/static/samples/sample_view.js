// One sample: prompt, response, the rest of its group, and its timeline from dispatch to training.
import { fetchJson } from "../lib/api.js";
import { isMasked, rewardRange, sampleCard } from "./sample_card.js";
import { make, withCode } from "../lib/elements.js";
import { conversation, endOf } from "./conversation.js";
import { rowFields } from "./row_fields.js";
import { answersOf, readSamples } from "./sample_log.js";
import { StepTimes } from "./step_times.js";
import { promptText, shadedTokens, tokenTexts } from "./tokens.js";
import { clock, duration, number, plural, signed } from "../lib/format.js";
import { readsRewards, trainsGiven } from "../lib/run_kind.js";

export async function showSample({ root, signal }, runId, sampleId) {
  const run = await fetchJson(`/v1/runs/${runId}`, { signal });
  document.title = `Sample ${sampleId} · Gradbus`;
  const times = new StepTimes(runId, signal);
  const page = await readSamples(run, times, { index: Number(sampleId.split(".")[0]), tokens: true }, signal);
  const sample = page.data.find(({ id }) => id === sampleId);
  root.append(make("div", { class: "view-head" }, make("h1", {}, `Sample ${sampleId}`), make("a", { href: `#/runs/${run.id}/samples?${comparisonQuery(run, sample)}` }, `Samples of ${run.name || run.id}`)));
  if (!sample) {
    root.append(make("p", { class: "empty" }, "This sample is not in the experience log: not sampled yet, or its group was dropped before."));
    return;
  }
  const isGiven = trainsGiven(run.spec);
  const texts = isGiven ? null : await tokenTexts(run, signal);
  const range = rewardRange(page.data);
  const [published, trained] = [await times.of(sample.dispatched_version - 1), sample.step === null ? undefined : await times.of(sample.step)];
  root.append(
    make("section", { class: "text" },
      make("h2", {}, "Prompt"), make("pre", { class: "prompt" }, sample.prompt),
      rowFields(answersOf(run, sample)),
      make("h2", {}, "Response"), make("pre", { class: "response" }, ...shadedTokens(sample, texts)),
      ...forks(sample, texts),
      !isGiven && make("p", { class: "soft small" }, texts ? "The stronger a token's colour, the less probable it was when it was sampled; point at a token to see its probability." : "The model's tokenizer.json cannot be read here, so single tokens are not shown.")),
    ...(sample.episode ? [conversation(sample.episode)] : []),
    make("div", { class: "panels" },
      make("section", { class: "panel" }, make("h2", {}, "Timeline"), timeline(run, sample, published, trained)),
      make("section", { class: "panel" }, make("h2", {}, isGiven ? "Responses of the row" : `Group of ${page.data.length} samples`), make("ol", { class: "cards" }, ...page.data.map((member) => sampleCard(run, member, { colour: isGiven ? "" : "advantage", texts: null, range })))),
    ),
  );
}

/** The further sequences of an episode: what the policy read, and what it drew. */
function forks(sample, texts) {
  if (!texts || !sample.tokens) return [];
  return sample.tokens.forks.flatMap((fork, at) => [make("h2", {}, `Sequence ${at + 2}`), make("pre", { class: "prompt" }, promptText(fork, texts)), make("pre", { class: "response" }, ...shadedTokens(sample, texts, at + 1))]);
}

function comparisonQuery(run, sample) {
  if (!sample || sample.step === null) return "";
  const last = Math.max(0, run.progress.step - 1);
  return new URLSearchParams({ steps: [...new Set([0, sample.step, last])].sort((a, b) => a - b).join(","), at: sample.index % run.spec.schedule.groups_per_step, show: "prompt" });
}

/** `published`: when the version that its task names was; `trained`: when its step was reported. */
function timeline(run, sample, published, trained) {
  const admitted = Date.parse(sample.admitted_at);
  return make(
    "ol", { class: "timeline" },
    ...(trainsGiven(run.spec) ? [read(run, sample)] : sampled(run, sample, published)),
    stage("Admitted", admitted, `${{ train: "To be trained", filtered: "Filtered: not part of its step", dropped: "Dropped" }[sample.verdict] ?? sample.verdict}${sample.verdict !== "train" && sample.reason ? `, ${sample.reason}` : ""}.${elapsed(published, admitted, "after its version was published")}`, sample.verdict !== "train"),
    sample.verdict === "train" && trainedStage(run, sample, trained, admitted),
    stage("Trace", null, sample.trace_id ? make("code", {}, sample.trace_id) : "None recorded: no exporter is configured, or traces of this group were not sampled."),
  );
}

/** The stages of a response of the dataset before its admission. */
function read(run, sample) {
  const which = sample.label ? `the ${sample.label} response` : "the completion";
  const row = sample.label === "mismatched" ? `row ${sample.row_index}, which is that of another row` : `row ${sample.row_index} of the dataset`;
  return stage("Read", null, `Group ${sample.index}: ${which} of ${row}, ${plural(sample.token_count, "token")}, by ${sample.worker}.`);
}

/** The stages of a sampled response before its admission; `published`: when the version that its task names was. */
function sampled(run, sample, published) {
  const spans = sample.versions.map((span) => `tokens ${span.start} to ${span.end - 1}${span.sequence ? ` of sequence ${span.sequence + 1}` : ""} by version ${span.version}${span.trainable ? "" : " (not trained)"}`);
  const parts = Object.entries(sample.components).map(([name, value]) => `${name} ${number(value)}`);
  return [
    stage("Dispatched", published, `Group ${sample.index}, row ${sample.row_index} of the dataset, for policy version ${sample.dispatched_version}.${published ? " The time shown is when that version was published." : ""}`),
    stage("Generated", null, `By ${sample.worker}${sample.engine ? ` (${sample.engine})` : ""}: ${plural(sample.token_count, "token")}, ${spans.join("; ")}. ${endOfSample(sample)}`),
    sample.episode && stage("Played", null, `${plural(sample.episode.turns.length, "turn")}; ${endOf(sample.episode)}`, sample.episode.end_reason === "failed"),
    readsRewards(run.spec)
      ? stage("Scored", null, sample.reward === null ? `${sample.reward_status}: ${sample.reason || "no reason given"}` : `Reward ${number(sample.reward)}${parts.length ? `, from ${parts.join(", ")}` : ""}.`, sample.reward === null)
      : stage("Judged by the teacher", null, "Token by token; it has no reward."),
  ];
}

function endOfSample(sample) {
  if (sample.episode) return "";
  return sample.finish_reason === "length" ? "Truncated at max_new_tokens." : "Ended with a stop token.";
}

function trainedStage(run, sample, trained, admitted) {
  if (sample.label === "greedy") return stage("Baseline", null, "Not trained: its reward is the baseline of the other samples of its group.");
  if (isMasked(run, sample)) return stage("Masked", null, "Not trained: it could not be scored, or was truncated.", true);
  const oldest = Math.min(...sample.versions.filter((span) => span.trainable).map((span) => span.version));
  const isGiven = trainsGiven(run.spec);
  const behind = isGiven ? "" : `, ${plural(Math.max(0, sample.step - oldest), "version")} behind; it made version ${sample.step + 1}`;
  const advantage = isGiven ? "" : sample.advantage === null ? "Its advantage depends on the whole step or on the token." : `Advantage ${signed(sample.advantage)}.`;
  if (sample.step === null) return stage("Trained", null, withCode(`The log decides by which step: the schedule is \`free\`, or filtered groups are replaced. ${advantage}`));
  if (trained === undefined && run.progress.step <= sample.step) return stage("Waiting", null, `Step ${sample.step} will train it. ${advantage}`);
  return stage("Trained", trained, `By step ${sample.step}${behind}. ${advantage}${elapsed(admitted, trained, "after it was admitted")}`);
}

const elapsed = (from, until, what) => (from && until && until >= from ? ` ${duration((until - from) / 1000)} ${what}.` : "");

function stage(name, time, text, isWarning = false) {
  return make("li", { class: isWarning ? "warns" : null }, make("b", {}, name), make("span", { class: "soft small num" }, time ? clock(time, true) : ""), make("p", {}, text));
}
