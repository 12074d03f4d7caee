// One sample's life: from the version it was dispatched for to the step that trained it.
import { ask } from "./api.js";
import { card, rewardRange } from "./card.js";
import { make, prose } from "./elements.js";
import { catchUp, historyOf } from "./history.js";
import { readSamples } from "./log.js";
import { piecesOf, shaded } from "./tokens.js";
import { clock, duration, number, plural, signed } from "./words.js";

export async function showSample({ root, signal }, runId, sampleId) {
  const run = await ask(`/v1/runs/${runId}`, { signal });
  document.title = `Sample ${sampleId} · Gradbus`;
  const told = historyOf(runId);
  await catchUp(runId, told, signal);
  const page = await readSamples(run, told, { index: Number(sampleId.split(".")[0]), tokens: true }, signal);
  const sample = page.data.find((one) => one.id === sampleId);
  root.append(make("div", { class: "page-head" }, make("h1", {}, `Sample ${sampleId}`), make("a", { href: `#/runs/${run.id}/samples?${beside(run, sample)}` }, `Samples of ${run.name || run.id}`)));
  if (!sample) {
    root.append(make("p", { class: "empty" }, "It is not in the experience log: not sampled yet, or its group was dropped before it came."));
    return;
  }
  const pieces = await piecesOf(run, signal);
  const range = rewardRange(page.data);
  root.append(
    make("section", { class: "text" },
      make("h2", {}, "Prompt"), make("pre", { class: "prompt" }, sample.prompt),
      make("h2", {}, "Response"), make("pre", { class: "response" }, ...shaded(sample, pieces)),
      make("p", { class: "soft small" }, pieces ? "The stronger a token's colour, the less probable it was when it was sampled; point at one to see." : "The model's tokenizer.json cannot be read here, so tokens are not shown apart.")),
    make("div", { class: "panels" },
      make("section", { class: "panel" }, make("h2", {}, "Its life"), timeline(run, told, sample)),
      make("section", { class: "panel" }, make("h2", {}, `Its group of ${page.data.length}`), make("ol", { class: "cards" }, ...page.data.map((one) => card(run, one, { colour: "advantage", pieces: null, range })))),
    ),
  );
}

function beside(run, sample) {
  if (!sample || sample.step === null) return "";
  const last = Math.max(0, run.progress.step - 1);
  return new URLSearchParams({ steps: [...new Set([0, sample.step, last])].sort((a, b) => a - b).join(","), at: sample.index % run.spec.schedule.groups_per_step, show: "prompt" });
}

function timeline(run, told, sample) {
  const published = told.timeOf(sample.dispatched_version - 1);
  const admitted = Date.parse(sample.admitted_at);
  const trained = sample.step === null ? undefined : told.timeOf(sample.step);
  const spans = sample.versions.map((span) => `tokens ${span.start} to ${span.end - 1} by version ${span.version}${span.trainable ? "" : " (not trained)"}`);
  const parts = Object.entries(sample.components).map(([name, value]) => `${name} ${number(value)}`);
  return make(
    "ol", { class: "life" },
    stage("Dispatched", published, `Group ${sample.index}, row ${sample.row_index} of the dataset, for policy version ${sample.dispatched_version}.${published ? " The time is when that version was published; not before." : ""}`),
    stage("Generated", null, `By ${sample.worker}${sample.engine ? ` (${sample.engine})` : ""}: ${plural(sample.token_count, "token")}, ${spans.join("; ")}. ${sample.finish_reason === "length" ? "Cut off at max_new_tokens." : "Ended by itself."}`),
    stage("Scored", null, sample.reward === null ? `${sample.reward_status}: ${sample.reason || "without a reason"}` : `Reward ${number(sample.reward)}${parts.length ? `, from ${parts.join(", ")}` : ""}.`, sample.reward === null),
    stage("Admitted", admitted, `${{ train: "To be trained", filtered: "Filtered: it takes no part in the step", dropped: "Dropped" }[sample.verdict] ?? sample.verdict}${sample.verdict !== "train" && sample.reason ? `, ${sample.reason}` : ""}.${since(published, admitted, "after its version was published")}`, sample.verdict !== "train"),
    sample.verdict === "train" && learnt(run, sample, trained, admitted),
    stage("Trace", null, sample.trace_id ? make("code", {}, sample.trace_id) : "None recorded: no exporter is set, or this group was not among those sampled."),
  );
}

function learnt(run, sample, trained, admitted) {
  if (sample.advantage === null) return stage("Masked", null, "It takes no part in its step: it could not be judged, or was cut off.", true);
  const oldest = Math.min(...sample.versions.filter((span) => span.trainable).map((span) => span.version));
  const advantage = `Advantage ${signed(sample.advantage)} against its group.`;
  if (sample.step === null) return stage("Trained", null, prose(`In a \`free\` schedule the order in the log says by which step. ${advantage}`));
  if (trained === undefined && run.progress.step <= sample.step) return stage("Waits", null, `Step ${sample.step} will train it. ${advantage}`);
  return stage("Trained", trained, `By step ${sample.step}, ${plural(Math.max(0, sample.step - oldest), "version")} behind; it made version ${sample.step + 1}. ${advantage}${since(admitted, trained, "after it was admitted")}`);
}

const since = (from, until, what) => (from && until && until >= from ? ` ${duration((until - from) / 1000)} ${what}.` : "");

function stage(name, time, text, warns = false) {
  return make("li", { class: warns ? "warns" : null }, make("b", {}, name), make("span", { class: "soft small num" }, time ? clock(time, true) : ""), make("p", {}, text));
}
