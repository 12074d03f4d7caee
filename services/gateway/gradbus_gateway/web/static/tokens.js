// What each token reads as: the model's own tokenizer.json, read in the browser. Only pictures need it; nothing is tokenised again.
import { ask } from "./api.js";
import { make } from "./elements.js";

const kept = { digest: "", pieces: null };

/** Id to text, or null when the run's tokenizer cannot be had. */
export async function piecesOf(run, signal) {
  const digest = run.spec.model.files?.["tokenizer.json"];
  if (!digest) return null;
  if (kept.digest === digest) return kept.pieces;
  try {
    const read = pieces(await ask(`/v1/files/${digest}`, { signal }));
    Object.assign(kept, { digest, pieces: read });
    return read;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

function pieces({ model, added_tokens: added = [], pre_tokenizer: before, decoder }) {
  const table = Array.isArray(model.vocab) ? model.vocab.map(([piece]) => piece) : [];
  if (!Array.isArray(model.vocab)) for (const [piece, id] of Object.entries(model.vocab)) table[id] = piece;
  const inBytes = JSON.stringify([before, decoder]).includes('"ByteLevel"');
  const read = table.map((piece) => (inBytes ? fromBytes(piece) : piece.replaceAll("▁", " ")));
  for (const { id, content } of added) read[id] = content;
  return read;
}

const BYTES = byteTable();

/** The alphabet in which byte-level tokenizers spell bytes. */
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

/** The response, token by token, shaded by how improbable each was when it was sampled. */
export function shaded(sample, pieces) {
  if (!sample.tokens || !pieces) return [sample.text];
  return sample.tokens.ids.map((id, at) => {
    const logprob = sample.tokens.logprobs[at];
    const chance = Math.exp(logprob);
    const level = Math.min(5, Math.floor(-logprob / 0.5));
    const title = `${JSON.stringify(pieces[id] ?? "")}, token ${id}: probability ${chance < 0.001 ? chance.toExponential(1) : chance.toFixed(3)}`;
    return make("span", { class: `token p${level}`, title }, pieces[id] ?? `⟨${id}⟩`);
  });
}
