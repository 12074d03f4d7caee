// An episode as a conversation: each turn of the policy, its tool calls, and what the environment answered.
import { make } from "../lib/elements.js";
import { plural, signed } from "../lib/format.js";

const ENDS = {
  answered: "the policy answered",
  environment_done: "the environment ended it",
  max_turns: "it reached environment.max_turns",
  max_tokens: "it reached environment.max_tokens",
  context: "the model's context was full",
  invalid_calls: "too many turns in a row had no valid call",
  length: "a turn was cut off at rollout.max_new_tokens",
};

/** Why the episode ended, in a sentence. */
export function endOf(episode) {
  const again = episode.attempt ? ` after ${plural(episode.attempt, "attempt")} that the environment failed` : "";
  const end = episode.end_reason === "failed" ? `it failed and is not trained: ${episode.reason || "no reason given"}` : ENDS[episode.end_reason] ?? episode.end_reason;
  return `${end}${again}.`;
}

export function conversation(episode) {
  return make("section", { class: "text" },
    make("h2", {}, "Conversation"),
    make("ol", { class: "conversation" }, ...episode.turns.flatMap(turnItems)),
    make("p", { class: "soft small" }, `End: ${endOf(episode)}`),
  );
}

function turnItems(turn, number) {
  const reward = turn.reward === null ? "" : `reward ${signed(turn.reward)}`;
  const calls = turn.calls.map((call) => make("pre", { class: call.status === "ok" ? "call" : "call warns" }, `${call.name || "(no name)"} ${call.arguments}${call.status === "ok" ? "" : `  ← ${call.status.replace("_", " ")}`}`));
  return [
    item("policy", `Turn ${number + 1}`, noteOf(turn), [turn.text && make("pre", {}, turn.text), ...calls]),
    ...turn.messages.map((message) => item(message.role, message.role === "tool" ? `Tool ${message.name}` : "Environment", "", [make("pre", {}, message.content)])),
    reward && make("li", { class: "soft small num" }, reward),
  ];
}

/** How many tokens a turn has, how it ended, and where it is. */
export function noteOf(turn) {
  const end = turn.stop_text ? `, ended at ${JSON.stringify(turn.stop_text)}` : turn.finish === "length" ? ", cut off" : "";
  const without = turn.after_turn === null ? "" : `, without the thinking up to turn ${turn.after_turn + 1}`;
  return `${plural(turn.end - turn.start, "token")}${end}${turn.sequence ? `, sequence ${turn.sequence + 1}` : ""}${without}`;
}

const item = (author, title, note, parts) => make("li", { class: `by-${author}` }, make("b", {}, title), make("span", { class: "soft small num" }, note), ...parts);
