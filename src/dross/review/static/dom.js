// Elements from data. Text is only ever set as text, so nothing that is in the data can become markup,
// and what would hide or forge is shown escaped.

// The same characters as in _text.py.
const UNPRINTABLE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u{d800}-\u{dfff}\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;
const READ = new Set(["title", "alt", "aria-label", "data-name", "placeholder"]); // attributes that are shown or said

/** The text with its unprintable characters escaped: a NUL becomes the four letters \x00. */
export function printable(text) {
  return String(text).replace(UNPRINTABLE, (found) => {
    let code = found.charCodeAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) code -= 0xdc00; // a byte of a file name that is not UTF-8
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

const shown = (child) => (child instanceof Node ? child : printable(child));

/** h("p", { class: "quiet", onclick: f }, "text", child, ...) */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, READ.has(name) ? printable(value) : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(shown));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean).map(shown));
}

/** Text from the data: its direction of writing stays inside. */
export const data = (text, attributes = {}) => h("bdi", attributes, String(text));

/** Said by screen readers. Emptied first, so that the same sentence twice is said twice. */
export function say(text) {
  const place = byId("said");
  place.textContent = "";
  setTimeout(() => (place.textContent = printable(text)), 30);
}
