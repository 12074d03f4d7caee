// Samples side by side: one prompt at several steps, the best or worst samples of several steps, or every group of one dataset row.
import { fetchJson } from "../lib/api.js";
import { make, withCode } from "../lib/elements.js";
import { controls, queryOf, selectionOf } from "./comparison_controls.js";
import { number } from "../lib/format.js";
import { groupSize, hasFixedSteps, trainsGiven } from "../lib/run_kind.js";
import { rewardRange, sampleCard } from "./sample_card.js";
import { rowFields } from "./row_fields.js";
import { addRows, answersOf, byGroup, readSamples } from "./sample_log.js";
import { StepTimes } from "./step_times.js";
import { tokenTexts } from "./tokens.js";

const MAX_GROUPS = 4;
const MAX_CARDS = 12;
const MAX_FOUND = 24;
const MAX_PAGES = 20;

export async function showComparison({ root, signal, query, showError }, runId) {
  const run = await fetchJson(`/v1/runs/${runId}`, { signal });
  document.title = `Samples of ${run.name || run.id} · Gradbus`;
  const selection = selectionOf(query, run);
  const columns = make("div", { class: "columns", role: "region", "aria-label": "samples by step" });
  const status = make("p", { class: "soft small status", role: "status" });
  root.append(
    make("div", { class: "view-head" }, make("h1", {}, "Samples"), make("a", { href: `#/runs/${run.id}` }, run.name || run.id)),
  );
  let loading = new AbortController();
  const load = async () => {
    loading.abort();
    loading = new AbortController();
    const either = AbortSignal.any([signal, loading.signal]);
    history.replaceState(null, "", `#/runs/${run.id}/samples?${queryOf(selection)}`);
    status.textContent = "Reading the log …";
    try {
      const found = await readColumns(run, selection, either);
      const texts = selection.colour === "probability" ? await tokenTexts(run, either) : null;
      const range = rewardRange(found.flatMap((column) => column.samples));
      columns.replaceChildren(...found.map((column) => columnElement(run, column, { colour: selection.colour, texts, range, update })));
      status.textContent = selection.colour === "probability" && !texts ? "The model's tokenizer.json cannot be read here, so single tokens are not shown." : hint(selection, found);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 401) showError(error, root);
      else status.replaceChildren(...withCode(error.message));
    }
  };
  const update = (changes) => {
    Object.assign(selection, { from: "" }, changes); // another search begins at the first sample
    head.replaceChildren(controls(run, selection, update));
    load();
  };
  const head = make("div", {}, controls(run, selection, update));
  root.append(head, status, columns);
  await load();
}

/** The columns of a selection: [{title, samples, mixed?, more?}]; `mixed` if the samples have several prompts, `more` if some are left out, of a ranking how many it is of. */
async function readColumns(run, selection, signal) {
  if (selection.row !== null) return readRow(run, selection, signal);
  if (selection.show === "search") return [await search(run, selection, signal)];
  const times = new StepTimes(run.id, signal);
  return Promise.all(selection.steps.map((step) => readStep(run, times, selection, step, signal)));
}

export async function readStep(run, times, selection, step, signal) {
  const { groups_per_step: width } = run.spec.schedule;
  const tokens = selection.colour === "probability";
  if (selection.show === "prompt") {
    const index = step * width + selection.at;
    const page = await readSamples(run, times, { index, tokens, limit: 64 }, signal);
    return { title: hasFixedSteps(run.spec) ? `Step ${step}` : `Group ${index}`, samples: page.data, more: page.has_more };
  }
  const page = await readSamples(run, times, { step, tokens, rows: false }, signal);
  const sign = selection.show === "low" ? 1 : -1;
  const scored = page.data.filter((sample) => sample.reward !== null).sort((one, other) => sign * (one.reward - other.reward));
  const samples = scored.slice(0, MAX_CARDS);
  if (!trainsGiven(run.spec)) await addRows(run, times, samples, signal);
  return { title: `Step ${step}`, samples, mixed: true, more: page.has_more && page.data.length };
}

/** The first samples that are found after the place `from` of the log; a page of a search may have few or none. */
async function search(run, { text, verdict, colour, from }, signal) {
  const samples = [];
  let after = from;
  for (let pages = 0; after !== null && samples.length < MAX_FOUND && pages < MAX_PAGES; pages += 1) {
    const query = new URLSearchParams({ text, limit: MAX_FOUND - samples.length, after, include: "item" });
    if (verdict) query.set("verdict", verdict);
    if (colour === "probability") query.append("include", "tokens");
    const page = await fetchJson(`/v1/runs/${run.id}/samples?${query}`, { signal });
    samples.push(...page.data);
    after = page.next_after;
  }
  return { title: "Found", samples, mixed: true, more: after !== null, next: after, none: from ? "Nothing more was found." : "Nothing was found." };
}

async function readRow(run, selection, signal) {
  const query = new URLSearchParams({ row: selection.row, limit: MAX_GROUPS * groupSize(run.spec), include: "item" });
  if (selection.colour === "probability") query.append("include", "tokens");
  const page = await fetchJson(`/v1/runs/${run.id}/samples?${query}`, { signal });
  return byGroup(page.data).map((samples) => ({ title: samples[0].step === null ? `Group ${samples[0].index}` : `Step ${samples[0].step}`, samples }));
}

export function columnElement(run, { title, samples, mixed, more, next, none }, { colour, texts, range, update }) {
  const rewards = samples.map((sample) => sample.reward).filter((reward) => reward !== null);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const first = samples[0];
  const isGiven = trainsGiven(run.spec);
  const versions = [...new Set(samples.flatMap((sample) => sample.versions.map((span) => span.version)))].sort((a, b) => a - b);
  return make(
    "section", { class: "column" },
    make("h2", {}, title),
    !first ? make("p", { class: "soft" }, none && !more ? none : none ? "Nothing was found in this part of the log." : isGiven ? "Not in the log yet." : "Not in the log: not sampled or not scored yet, or dropped.")
      : !isGiven && make("p", { class: "soft small" }, `by version ${versions.join(", ")}${mixed || !rewards.length ? "" : ` · mean reward ${number(mean)}`}`),
    first && !mixed && make("div", { class: "prompt" }, make("pre", {}, first.prompt), rowFields(answersOf(run, first)), make("button", { class: "plain small", onclick: () => update({ row: first.row_index }) }, "every group of this prompt")),
    make("ol", { class: "cards" }, ...samples.flatMap((sample) => [mixed && make("li", { class: "of-prompt" }, make("pre", {}, sample.prompt), rowFields(answersOf(run, sample))), sampleCard(run, sample, { colour, texts, range })])),
    next && make("p", {}, make("button", { onclick: () => update({ from: next }) }, "Search further")),
    more && !none && make("p", { class: "soft small" }, mixed ? `Selected from the first ${more} samples of this step.` : "There are more samples."),
  );
}

function hint(selection, found) {
  if (selection.row !== null) return found.length > 1 ? "" : "The log has no other group of this prompt yet; the next pass over the data takes it again.";
  if (selection.colour === "probability") return "The stronger a token's colour, the less probable it was when it was sampled.";
  return selection.colour === "advantage" ? "Green: better than the group's mean. Red: worse. The stronger the colour, the larger the advantage." : "";
}
