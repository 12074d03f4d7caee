// The buttons Pause, Resume and Cancel. Cancelling, which cannot be undone, asks for confirmation first.
import { fetchJson } from "../lib/api.js";
import { make, setText, withCode } from "../lib/elements.js";
import { FINAL } from "../lib/format.js";

export function runActions({ can, signal }, run, onChange) {
  const problem = make("p", { class: "note bad hidden", role: "alert" });
  const pauseOrResume = make("button", {}, "Pause");
  const cancel = make("button", { class: "danger" }, "Cancel run …");
  const keep = make("button", { onclick: () => dialog.close() }, "Keep it running");
  const dialog = make(
    "dialog", { "aria-labelledby": "cancel-title" },
    make("h2", { id: "cancel-title" }, `Cancel ${run.name || run.id}?`),
    make("p", {}, "A cancelled run cannot be resumed. Its published versions and checkpoints are kept and can still be exported."),
    make("div", { class: "row" }, make("button", { class: "danger", onclick: () => { dialog.close(); send("cancel"); } }, "Cancel the run"), keep),
  );
  const send = async (action) => {
    pauseOrResume.disabled = cancel.disabled = true;
    try {
      onChange(await fetchJson(`/v1/runs/${run.id}/${action}`, { method: "POST", signal }));
      problem.classList.add("hidden");
    } catch (error) {
      problem.replaceChildren(...withCode(error.message));
      problem.classList.remove("hidden");
    } finally {
      pauseOrResume.disabled = cancel.disabled = false;
    }
  };
  pauseOrResume.addEventListener("click", () => send(pauseOrResume.dataset.action));
  cancel.addEventListener("click", () => {
    dialog.showModal();
    keep.focus();
  });
  const element = make("div", { class: "run-actions" }, make("div", { class: "row" }, pauseOrResume, cancel), problem, dialog);
  const set = (run) => {
    const isOver = FINAL.has(run.state) || run.state === "cancelling";
    const isPaused = run.desired === "paused";
    element.classList.toggle("hidden", isOver || !can("runs:write"));
    pauseOrResume.dataset.action = isPaused ? "resume" : "pause";
    setText(pauseOrResume, isPaused ? "Resume" : "Pause");
    if (isOver && dialog.open) dialog.close();
  };
  set(run);
  return { element, set };
}
