// Choosing a new label: by key, from the list, or as a number.

import { byId, data, h, show } from "./dom.js";
import { setting } from "./settings.js";
import { project } from "./state.js";

const KEYS = "1234567890abcdefghijklmnopqrstuvwxyz";
const dialog = byId("relabel");
let chosen = null;

/** Opens the dialog; calls then(label) when one is chosen. */
export function askLabel(item, then) {
  chosen = then;
  byId("relabel-about").replaceChildren(data(item.source), ", current label ", data(item.label));
  show(byId("relabel-body"), project.classes.length ? classes(item) : number(item));
  dialog.showModal();
  dialog.querySelector("[autofocus]")?.focus();
}

function take(label) {
  dialog.close();
  chosen?.(label);
}

function classes(item) {
  const names = project.classes;
  const byKey = names.length <= KEYS.length;
  const start = item.prediction !== item.label && names.includes(item.prediction) ? item.prediction : names.find((name) => name !== item.label);
  const buttons = names.map((name, place) =>
    h("button", { type: "button", class: "class-choice", "data-key": byKey ? KEYS[place] : null, autofocus: byKey && name === start, disabled: name === item.label, onclick: () => take(name) },
      byKey ? h("kbd", {}, KEYS[place]) : null, " ", data(name), name === item.prediction ? h("span", { class: "quiet" }, " predicted") : null,
      name === item.label ? h("span", { class: "quiet" }, " current") : null));
  const choices = h("div", { class: "class-choices" }, buttons);
  if (byKey) return [choices];
  const search = h("input", { type: "search", autofocus: true, autocomplete: "off", oninput: () => narrow(search.value, buttons) });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    buttons.find((button) => !button.hidden && !button.disabled)?.click();
  });
  return [h("label", {}, "Type part of the name, then press Enter ", search), choices];
}

function narrow(text, buttons) {
  buttons.forEach((button, place) => (button.hidden = !project.classes[place].toLowerCase().includes(text.toLowerCase())));
}

function number(item) {
  const input = h("input", { inputmode: "decimal", autocomplete: "off", autofocus: true, value: item.prediction });
  const wrong = h("p", { class: "problem", role: "alert" });
  const form = h("form", {}, h("label", {}, "New value ", input), " ", h("button", { class: "primary" }, "Relabel"), wrong);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim() && Number.isFinite(Number(input.value))) take(input.value.trim());
    else wrong.textContent = "Enter a number, such as 3.5.";
  });
  return [form];
}

dialog.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  const buttons = [...dialog.querySelectorAll(".class-choice:not([hidden], :disabled)")];
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const place = buttons.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    buttons[(place + buttons.length) % buttons.length]?.focus();
  } else if (setting("keys") === "on") {
    const button = buttons.find((candidate) => candidate.dataset.key === event.key.toLowerCase());
    if (button) {
      event.preventDefault();
      event.stopPropagation();
      button.click();
    }
  }
});
