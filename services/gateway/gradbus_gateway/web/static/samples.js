// Samples side by side: the same place of the data at several steps, the best and worst of a step, or one prompt each time it came.
import { ask } from "./api.js";
import { card, rewardRange } from "./card.js";
import { make, prose } from "./elements.js";
import { catchUp, historyOf } from "./history.js";
import { byGroup, readSamples } from "./log.js";
import { piecesOf } from "./tokens.js";
import { number } from "./words.js";

const COLUMNS = 4;
const CARDS = 12;

export async function showSamples(context, runId) {
  const { root, signal, query, fail } = context;
  const run = await ask(`/v1/runs/${runId}`, { signal });
  document.title = `Samples of ${run.name || run.id} · Gradbus`;
  const wish = wishOf(query, run);
  const columns = make("div", { class: "columns", role: "region", "aria-label": "samples by step" });
  const status = make("p", { class: "soft small status", role: "status" });
  root.append(
    make("div", { class: "page-head" }, make("h1", {}, "Samples"), make("a", { href: `#/runs/${run.id}` }, run.name || run.id)),
  );
  if (!run.progress.step && run.state !== "running") {
    root.append(make("div", { class: "empty" }, make("p", {}, "No samples yet: nothing has been trained.")));
    return;
  }
  let reading = new AbortController();
  const load = async () => {
    reading.abort();
    reading = new AbortController();
    const mine = AbortSignal.any([signal, reading.signal]);
    history.replaceState(null, "", `#/runs/${run.id}/samples?${address(wish)}`);
    status.textContent = "Reading the log …";
    try {
      const told = historyOf(runId);
      await catchUp(runId, told, mine);
      const pieces = wish.colour === "probability" ? await piecesOf(run, mine) : null;
      const found = wish.row === null ? await bySteps(run, told, wish, mine) : await byRow(run, wish, mine);
      const range = rewardRange(found.flatMap((column) => column.samples));
      columns.replaceChildren(...found.map((column) => drawn(run, column, { colour: wish.colour, pieces, range, anew })));
      status.textContent = wish.colour === "probability" && !pieces ? "The model's tokenizer.json cannot be read here, so tokens are not shown apart." : said(run, wish, found);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 401) fail(error, root);
      else status.replaceChildren(...prose(error.message));
    }
  };
  const anew = (changes) => {
    Object.assign(wish, changes);
    head.replaceChildren(controls(run, wish, anew));
    load();
  };
  const head = make("div", {}, controls(run, wish, anew));
  root.append(head, status, columns);
  await load();
}

/** Where no step owns a group: its groups come in any order, and their numbers are near those of the steps that train them. */
const isFree = (run) => run.spec.schedule.mode === "free";

function wishOf(query, run) {
  const last = Math.max(0, run.progress.step - 1);
  const given = (query.get("steps") ?? "").split(",").filter((part) => /^\d+$/.test(part)).map(Number);
  const spread = [0, Math.round(last / 3), Math.round((2 * last) / 3), last];
  return {
    steps: given.length ? given.slice(0, COLUMNS) : [...new Set(spread)],
    at: Number(query.get("at")) || 0,
    show: isFree(run) ? "prompt" : query.get("show") ?? "prompt",
    colour: query.get("colour") ?? "",
    row: query.has("row") ? Number(query.get("row")) : null,
  };
}

function address({ steps, at, show, colour, row }) {
  const parts = row === null ? { steps: steps.join(","), at, show } : { row };
  return new URLSearchParams(colour ? { ...parts, colour } : parts);
}

function controls(run, wish, anew) {
  const width = run.spec.schedule.groups_per_step;
  const choice = (label, name, options) =>
    make("label", { class: "field" }, make("span", {}, label), make("select", { "aria-label": label, onchange: (event) => anew({ [name]: event.target.value }) }, ...options.map(([value, text]) => make("option", { value, selected: wish[name] === value }, text))));
  const colour = choice("Colour", "colour", [["", "none"], ["probability", "token probability"], ["advantage", "advantage"]]);
  if (wish.row !== null) {
    return make("div", { class: "controls" }, make("p", {}, `Row ${wish.row} of the dataset, each time it came. `, make("button", { class: "plain", onclick: () => anew({ row: null }) }, "Back to steps")), colour);
  }
  const steps = wish.steps.map((step, place) =>
    make("input", { type: "number", min: 0, max: Math.max(0, run.steps - 1), value: step, "aria-label": `step of column ${place + 1}`, onchange: (event) => anew({ steps: wish.steps.with(place, Math.max(0, Number(event.target.value) || 0)) }) }));
  const turn = (by) => anew({ at: (wish.at + by + width) % width });
  const place = make(
    "div", { class: "field" }, make("span", {}, isFree(run) ? `Place, of ${width}` : `Place in the step, of ${width}`),
    make("span", { class: "row" },
      make("button", { "aria-label": "place before", onclick: () => turn(-1) }, "‹"),
      make("input", { type: "number", min: 1, max: width, value: wish.at + 1, "aria-label": "place in the step", onchange: (event) => anew({ at: Math.min(width, Math.max(1, Number(event.target.value) || 1)) - 1 }) }),
      make("button", { "aria-label": "place after", onclick: () => turn(1) }, "›")));
  return make(
    "div", { class: "controls" },
    make("div", { class: "field" }, make("span", {}, isFree(run) ? "Steps, about" : "Steps"), make("span", { class: "row steps" }, ...steps)),
    !isFree(run) && choice("Show", "show", [["prompt", "one prompt, all its samples"], ["low", "lowest rewards of the step"], ["high", "highest rewards of the step"]]),
    wish.show === "prompt" && place, colour,
  );
}

async function bySteps(run, told, wish, signal) {
  const { groups_per_step: width } = run.spec.schedule;
  const tokens = wish.colour === "probability";
  return Promise.all(wish.steps.map(async (step) => {
    if (wish.show === "prompt") {
      const page = await readSamples(run, told, { index: step * width + wish.at, tokens, limit: 64 }, signal);
      return { title: isFree(run) ? `Group ${step * width + wish.at}` : `Step ${step}`, samples: page.data, more: page.has_more };
    }
    const page = await readSamples(run, told, { step, tokens }, signal);
    const sign = wish.show === "low" ? 1 : -1;
    const judged = page.data.filter((sample) => sample.reward !== null).sort((one, other) => sign * (one.reward - other.reward));
    return { title: `Step ${step}`, samples: judged.slice(0, CARDS), mixed: true, more: page.has_more };
  }));
}

async function byRow(run, wish, signal) {
  const query = new URLSearchParams({ row: wish.row, limit: COLUMNS * run.spec.rollout.group_size, ...(wish.colour === "probability" ? { include: "tokens" } : {}) });
  const page = await ask(`/v1/runs/${run.id}/samples?${query}`, { signal });
  return byGroup(page.data).map((samples) => ({ title: samples[0].step === null ? `Group ${samples[0].index}` : `Step ${samples[0].step}`, samples }));
}

function drawn(run, { title, samples, mixed, more }, { colour, pieces, range, anew }) {
  const rewards = samples.map((sample) => sample.reward).filter((reward) => reward !== null);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const first = samples[0];
  const versions = [...new Set(samples.flatMap((sample) => sample.versions.map((span) => span.version)))].sort((a, b) => a - b);
  return make(
    "section", { class: "column" },
    make("h2", {}, title),
    first ? make("p", { class: "soft small" }, `by version ${versions.join(", ")} · mean reward ${number(mean)}`) : make("p", { class: "soft" }, "Not there: not sampled yet, or left out before it came."),
    first && !mixed && make("div", { class: "prompt" }, make("pre", {}, first.prompt), make("button", { class: "plain small", onclick: () => anew({ row: first.row_index }) }, "each time it came")),
    make("ol", { class: "cards" }, ...samples.flatMap((sample) => [mixed && make("li", { class: "of-prompt" }, make("pre", {}, sample.prompt)), card(run, sample, { colour, pieces, range })])),
    more && make("p", { class: "soft small" }, mixed ? "Out of the first 1000 samples of this step." : "There are more."),
  );
}

function said(run, wish, found) {
  if (wish.row !== null) return found.length > 1 ? "" : "Of this prompt no other group is in the log yet; it comes back with the next pass over the data.";
  return wish.colour === "probability" ? "The stronger a token's colour, the less probable it was when it was sampled." : wish.colour === "advantage" ? "Green was better than its group, red worse; deeper is further." : "";
}
