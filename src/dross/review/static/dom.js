// Elements from data. Text is only ever set as text, so nothing that is in the data can become markup.

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
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

/** Text from the data: its direction of writing stays inside. */
export const data = (text, attributes = {}) => h("bdi", attributes, String(text));

/** Said by screen readers. Emptied first, so that the same sentence twice is said twice. */
export function say(text) {
  const place = byId("said");
  place.textContent = "";
  setTimeout(() => (place.textContent = text), 30);
}
