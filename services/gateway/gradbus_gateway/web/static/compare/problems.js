// Why runs of a comparison cannot be read at the moment.
import { make, withCode } from "../lib/elements.js";

export class Problems {
  #texts = new Map();
  #shown = "";

  /** `onSignedOut` is called with the error that says that the session is over. */
  constructor(onSignedOut) {
    this.onSignedOut = onSignedOut;
    this.element = make("div", { class: "note bad hidden", role: "alert" });
  }

  /** The error of the newest request for a run; null: it was answered. */
  set(id, error) {
    if (error?.status === 401) this.onSignedOut(error);
    else if (error) this.#texts.set(id, error.message);
    else this.#texts.delete(id);
    this.#show();
  }

  #show() {
    const texts = [...new Set(this.#texts.values())];
    if (`${texts}` === this.#shown) return; // an alert that is written again is read aloud again
    this.#shown = `${texts}`;
    this.element.classList.toggle("hidden", !texts.length);
    this.element.replaceChildren(...texts.map((text) => make("p", {}, ...withCode(text))));
  }
}
