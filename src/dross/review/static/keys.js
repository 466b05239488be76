// One key per action. They can be switched off; arrows, Enter, Esc and Ctrl+Z remain.

import { byId, h, show } from "./dom.js";
import { set, setting } from "./settings.js";

const KEYS = [
  ["k", "keep", "keep it (for a label to check: mark it as right)"],
  ["x", "remove", "remove it (for a label to check: mark it as wrong)"],
  ["r", "relabel", "relabel it: then 1 to 9, 0 and letters choose a class"],
  ["c", "undecided", "clear its decision"],
  ["u", "undo", "undo, as often as you like"],
  ["U", "redo", "redo"],
  ["j", "next", "next instance"],
  ["i", "previous", "previous instance"],
  ["w", "why", "show or hide the explanation"],
  ["z", "zoom", "enlarge its image; then + and − zoom, 0 fits, 1 is the original size"],
  ["b", "bulk", "apply one decision to the whole list"],
  ["t", "plan", "accept the recommended plan"],
  ["v", "verdict", "open the verdict"],
  ["/", "search", "search"],
  ["?", "help", "this help"],
];
const ALWAYS = [
  ["Arrows, Page Up, Page Down, Home, End", "move in the list"],
  ["Enter", "read the explanation in the panel"],
  ["Esc", "close what is open"],
  ["Ctrl+Z, Ctrl+Shift+Z", "undo, redo"],
];

const typing = (target) => target.closest("input:not([type=checkbox]), select, textarea") !== null;

export function start(actions) {
  const boxes = [byId("keys-on"), byId("keys-on-too")];
  const apply = (value) => {
    set("keys", value ? "on" : "off");
    boxes.forEach((box) => (box.checked = value));
    document.body.classList.toggle("no-keys", !value);
  };
  boxes.forEach((box) => box.addEventListener("change", () => apply(box.checked)));
  apply(setting("keys") === "on");
  const row = (key, words) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, words));
  show(byId("help-body"), h("h3", {}, "Keys"), h("dl", { class: "keys" }, KEYS.map(([key, , words]) => row(key === "U" ? "Shift+u" : key, words)), ALWAYS.map(([key, words]) => row(key, words))),
    h("p", {}, "Every key has a button. A decision is on disk as soon as the page says “Saved”."));
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || typing(event.target)) return;
    const withControl = event.ctrlKey || event.metaKey;
    if (withControl && event.key.toLowerCase() === "z") return run(event, event.shiftKey ? actions.redo : actions.undo);
    if (withControl || event.altKey) return;
    if (event.key === "Escape") return actions.escape();
    if (setting("keys") !== "on") return;
    const found = KEYS.find(([key]) => key === event.key) ?? (event.key === "U" ? null : KEYS.find(([key]) => key === event.key.toLowerCase()));
    if (found) run(event, actions[found[1]]);
  });
}

function run(event, action) {
  event.preventDefault();
  action();
}

/** Keys that belong to the list while the focus is in it. */
export function inList(element, list, openWhy) {
  const moves = {
    ArrowDown: () => list.move(1), ArrowUp: () => list.move(-1), ArrowRight: () => list.move(0, 1), ArrowLeft: () => list.move(0, -1),
    PageDown: () => list.movePage(1), PageUp: () => list.movePage(-1), Home: () => list.select(0), End: () => list.select(list.length() - 1),
    Enter: openWhy, " ": openWhy,
  };
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  });
}
