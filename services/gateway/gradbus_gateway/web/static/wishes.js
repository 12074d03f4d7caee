// Pause, resume, cancel. What cannot be taken back is asked about first.
import { ask } from "./api.js";
import { make, prose, setText } from "./elements.js";
import { FINAL } from "./words.js";

export function wishes({ may, signal }, run, changed) {
  const trouble = make("p", { class: "note bad hidden", role: "alert" });
  const hold = make("button", {}, "Pause");
  const cancel = make("button", { class: "danger" }, "Cancel run …");
  const stay = make("button", { onclick: () => dialog.close() }, "Let it run");
  const dialog = make(
    "dialog", { "aria-labelledby": "cancel-title" },
    make("h2", { id: "cancel-title" }, `Cancel ${run.name || run.id}?`),
    make("p", {}, "It ends for good and cannot be resumed. Published versions and checkpoints are kept and can still be exported."),
    make("div", { class: "row" }, make("button", { class: "danger", onclick: () => { dialog.close(); send("cancel"); } }, "Cancel the run"), stay),
  );
  const send = async (verb) => {
    hold.disabled = cancel.disabled = true;
    try {
      changed(await ask(`/v1/runs/${run.id}/${verb}`, { method: "POST", signal }));
      trouble.classList.add("hidden");
    } catch (error) {
      trouble.replaceChildren(...prose(error.message));
      trouble.classList.remove("hidden");
    } finally {
      hold.disabled = cancel.disabled = false;
    }
  };
  hold.addEventListener("click", () => send(hold.dataset.verb));
  cancel.addEventListener("click", () => {
    dialog.showModal();
    stay.focus();
  });
  const element = make("div", { class: "wishes" }, make("div", { class: "row" }, hold, cancel), trouble, dialog);
  const set = (now) => {
    const isOver = FINAL.has(now.state) || now.state === "cancelling";
    const paused = now.desired === "paused";
    element.classList.toggle("hidden", isOver || !may("runs:write"));
    hold.dataset.verb = paused ? "resume" : "pause";
    setText(hold, paused ? "Resume" : "Pause");
    if (isOver && dialog.open) dialog.close();
  };
  set(run);
  return { element, set };
}
