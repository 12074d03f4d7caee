// Creates elements. Text always stays text: nothing that a model wrote can become markup.
const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `make("p", { class: "soft", onclick }, "text", child)`. Children that are false or null are left out. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, with the same parameters. */
export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets an element's text only if it differs, so that screen readers and selections are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an element's text, its parts in backquotes as code, only if it differs. */
export function setTextWithCode(element, text) {
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.replaceChildren(...withCode(text));
}

/** `text` as a list of strings and, for its parts in backquotes, code elements. */
export function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));
}
