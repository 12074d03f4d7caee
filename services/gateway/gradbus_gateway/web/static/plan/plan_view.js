// The plan of a run before it is submitted: a spec and a card in, tables out. `?run=ID` begins with the spec of that run.
import { fetchJson } from "../lib/api.js";
import { make } from "../lib/elements.js";
import { explanationOf } from "../lib/explanation.js";
import { planTables } from "./plan_tables.js";

/** Those of `gradbus plan`. */
export const CARDS = ["h100", "h200", "b200", "a100", "a100-40gb", "l40s", "l4", "a10", "rtx5090", "rtx4090", "rtx3090"];
export const MOST_CARDS = 1024;

export async function showPlan({ root, signal, query, can }) {
  document.title = "Plan · Gradbus";
  const spec = make("textarea", { id: "plan-spec", rows: 14, cols: 80, spellcheck: "false", required: true });
  const gpu = make("select", { id: "plan-gpu" }, ...CARDS.map((name) => make("option", {}, name)));
  const gpus = make("input", { id: "plan-gpus", type: "number", min: 1, max: MOST_CARDS, value: 1 });
  const answer = make("div", { role: "status" });
  let asked = 0;
  const submit = async (event) => {
    event.preventDefault();
    const own = (asked += 1);
    answer.replaceChildren(make("p", { class: "soft" }, "Checking the spec and its model …"));
    const parts = await answered(spec.value, gpu.value, gpus.value, signal);
    if (own === asked) answer.replaceChildren(...parts); // an older answer may come later
  };
  root.append(
    make("h1", {}, "Plan of a run"),
    make("p", {}, "Memory, what fits, and seconds of a step, by arithmetic: nothing starts, and no run is created."),
    !can("runs:write") && make("p", { class: "note" }, "A plan checks a submission, which needs a key with the scope runs:write."),
    make(
      "form", { onsubmit: submit },
      make("p", {}, make("label", { for: "plan-spec" }, "Run spec, as TOML or JSON")),
      spec,
      make(
        "p", { class: "row" },
        make("label", { for: "plan-gpus" }, "Cards"), gpus,
        make("label", { for: "plan-gpu" }, "of the kind"), gpu,
        make("button", { disabled: !can("runs:write") }, "Plan"),
      ),
    ),
    answer,
  );
  if (query.has("run")) spec.value = JSON.stringify((await fetchJson(`/v1/runs/${encodeURIComponent(query.get("run"))}`, { signal })).spec, null, 1);
}

/** What is shown for a spec: its plan, or why there is none. */
export async function answered(text, gpu, gpus, signal) {
  const type = text.trimStart().startsWith("{") ? "application/json" : "application/toml";
  try {
    const path = `/v1/plans?${new URLSearchParams({ gpu, gpus })}`;
    return planTables(await fetchJson(path, { method: "POST", signal, body: text, type }));
  } catch (error) {
    if (error.name === "AbortError") return [];
    return [make("div", { class: "note bad", role: "alert" }, ...explanationOf(error))];
  }
}
