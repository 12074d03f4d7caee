// The text of each token, from the model's tokenizer.json. Only the colours need it; nothing is tokenised again.
import { fetchJson } from "../lib/api.js";
import { make } from "../lib/elements.js";

const AUTHORS = { frame: "chat template", tool: "tool", user: "environment", close: "chat template, in place of an end that was not drawn" };
const cache = { digest: "", texts: null };

/** Texts by token id; null if the run's tokenizer cannot be read. */
export async function tokenTexts(run, signal) {
  const digest = run.spec.model.files?.["tokenizer.json"];
  if (!digest) return null;
  if (cache.digest === digest) return cache.texts;
  try {
    const texts = vocabularyTexts(await fetchJson(`/v1/files/${digest}`, { signal }));
    Object.assign(cache, { digest, texts });
    return texts;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

function vocabularyTexts({ model, added_tokens: added = [], pre_tokenizer: before, decoder }) {
  const table = Array.isArray(model.vocab) ? model.vocab.map(([piece]) => piece) : [];
  if (!Array.isArray(model.vocab)) for (const [piece, id] of Object.entries(model.vocab)) table[id] = piece;
  const isByteLevel = JSON.stringify([before, decoder]).includes('"ByteLevel"');
  const texts = table.map((piece) => (isByteLevel ? fromBytes(piece) : piece.replaceAll("▁", " ")));
  for (const { id, content } of added) texts[id] = content;
  return texts;
}

const BYTES = byteTable();

/** The character that byte-level tokenizers write for each byte. */
function byteTable() {
  const table = new Map();
  let next = 256;
  for (let byte = 0; byte < 256; byte += 1) {
    const plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    table.set(String.fromCharCode(plain ? byte : next), byte);
    if (!plain) next += 1;
  }
  return table;
}

function fromBytes(piece) {
  const bytes = [...piece].map((letter) => BYTES.get(letter));
  return bytes.includes(undefined) ? piece : new TextDecoder().decode(new Uint8Array(bytes));
}

/** Tokens of a sequence that the policy did not draw by position, with their author. */
function others(sample, sequence) {
  const authors = new Map();
  for (const { start, end, author } of sample.versions.filter((span) => span.sequence === sequence)) if (author !== "policy") for (let at = start; at < end; at += 1) authors.set(at, author);
  return authors;
}

/** The prompt of a fork, which has tokens alone. */
export const promptText = (fork, texts) => fork.prompt_ids.map((id) => texts?.[id] ?? `⟨${id}⟩`).join("");

/** The response, or its k-th fork, token by token: the less probable a token was when it was sampled, the stronger its colour. */
export function shadedTokens(sample, texts, sequence = 0) {
  if (!sample.tokens || !texts) return [sequence ? "" : sample.text];
  const authors = others(sample, sequence);
  const tokens = sequence ? sample.tokens.forks[sequence - 1] : sample.tokens;
  return tokens.ids.map((id, at) => {
    if (authors.has(at)) return make("span", { class: `token by-${authors.get(at)}`, title: `${JSON.stringify(texts[id] ?? "")}, token ${id}: by the ${AUTHORS[authors.get(at)] ?? authors.get(at)}, not trained` }, texts[id] ?? `⟨${id}⟩`);
    const logprob = tokens.logprobs[at];
    const probability = Math.exp(logprob);
    const level = Math.min(5, Math.floor(-logprob / 0.5));
    const title = `${JSON.stringify(texts[id] ?? "")}, token ${id}: probability ${probability < 0.001 ? probability.toExponential(1) : probability.toFixed(3)}`;
    return make("span", { class: `token p${level}`, title }, texts[id] ?? `⟨${id}⟩`);
  });
}
