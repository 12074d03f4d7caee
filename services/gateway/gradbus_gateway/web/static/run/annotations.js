// What users wrote on a run: its tags, each of which leads to the runs that have it, and its note.
import { fetchJson } from "../lib/api.js";
import { make } from "../lib/elements.js";
import { explanationOf } from "../lib/explanation.js";

const MOST_NOTE_CHARACTERS = 4000;

/** The tags of a run as links to the list of runs that have them. */
export const tagLinks = ({ id, tags }) => tags.map((tag) => make("a", { id: `tag-${id}-${tag}`, class: "chip tag", href: `#/?tag=${encodeURIComponent(tag)}` }, tag));

/**
 * What to send so that `before` ({tags, note}) becomes the tags in `text`, which are separated by spaces or commas, and `note`.
 * What was not edited is left out: somebody else may have changed it meanwhile.
 */
export function changesOf(before, text, note) {
  const tags = text.split(/[\s,]+/).filter(Boolean);
  const added = tags.filter((tag) => !before.tags.includes(tag));
  return { add_tags: added, remove_tags: before.tags.filter((tag) => !tags.includes(tag)), ...(note === before.note ? {} : { note }) };
}

export class AnnotationPanel {
  #shown = "";
  #isEdited = false;

  /** `onChange` is called with the run as it is after a change. */
  constructor({ can, signal }, run, onChange) {
    Object.assign(this, { run, signal, onChange, mayEdit: can("runs:write") });
    this.element = make("div", { class: "annotations" });
    this.set(run);
  }

  set(run) {
    this.run = run;
    const shown = JSON.stringify([run.tags, run.note]);
    if (this.#isEdited || shown === this.#shown) return;
    this.#shown = shown;
    this.#show();
  }

  #show(hasFocus = false) {
    const edit = make("button", { class: "plain small", onclick: () => this.#edit() }, this.run.tags.length || this.run.note ? "Edit tags and note" : "Add tags or a note");
    this.element.replaceChildren(
      make("p", { class: "row" }, ...tagLinks(this.run), this.mayEdit && edit),
      this.run.note ? make("pre", { class: "run-note" }, this.run.note) : "",
    );
    if (hasFocus) edit.focus();
  }

  #edit() {
    this.#isEdited = true;
    const tags = make("input", { type: "text", value: this.run.tags.join(" ") });
    const note = make("textarea", { rows: 4, maxlength: MOST_NOTE_CHARACTERS }, this.run.note);
    const before = { tags: this.run.tags, note: note.value }; // not the run's note: a field has line ends of its own
    const problem = make("div", { class: "note bad hidden", role: "alert" });
    const save = async (event) => {
      event.preventDefault();
      try {
        const body = JSON.stringify(changesOf(before, tags.value, note.value));
        this.#end(await fetchJson(`/v1/runs/${this.run.id}`, { method: "PATCH", body, type: "application/json", signal: this.signal }));
      } catch (error) {
        problem.replaceChildren(...explanationOf(error));
        problem.classList.remove("hidden");
      }
    };
    const fields = [["Tags, separated by spaces", tags], ["Note", note]].map(([label, field]) => make("label", { class: "field" }, make("span", {}, label), field));
    this.element.replaceChildren(
      make("form", { onsubmit: save, onkeydown: (event) => event.key === "Escape" && this.#end(this.run) }, ...fields, problem,
        make("div", { class: "row" }, make("button", {}, "Save"), make("button", { type: "button", onclick: () => this.#end(this.run) }, "Discard"))),
    );
    tags.focus();
  }

  #end(run) {
    this.#isEdited = false;
    this.#shown = JSON.stringify([run.tags, run.note]);
    this.run = run;
    this.#show(true);
    this.onChange(run);
  }
}
