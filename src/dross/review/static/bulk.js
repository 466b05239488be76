// One decision about everything in the list: counted, confirmed, undone as one.

import { post } from "./api.js";
import { byId, data, h, say, show } from "./dom.js";
import { decide } from "./save.js";
import { partOf, project } from "./state.js";
import { count } from "./words.js";

const dialog = byId("bulk");
const action = byId("bulk-action");
const label = byId("bulk-label");
const confirm = byId("bulk-confirm");
let ids = [];
let asked = 0;

export function start() {
  if (project.classes.length) show(label, project.classes.map((name) => h("option", { value: name }, name)));
  else label.value = "";
  action.addEventListener("change", preview);
  label.addEventListener("input", preview);
  confirm.addEventListener("click", carryOut);
  byId("bulk-form").addEventListener("submit", (event) => event.preventDefault());
}

/** What the list shows right now, and in words what it was filtered by. */
export function open(shownIds, description) {
  ids = shownIds;
  for (const option of action.options) {
    option.dataset.train ??= option.textContent;
    option.textContent = option.dataset[partOf(ids[0])] ?? option.dataset.train;
  }
  show(byId("bulk-about"), h("strong", {}, count(ids.length, "instance")), " in this list", description ? [": ", data(description)] : "", ".");
  dialog.showModal();
  preview();
}

// A class is taken as it is, even with a space at its end; a number is typed.
const newLabel = () => (action.value !== "relabel" ? null : project.classes.length ? label.value : label.value.trim());

async function preview() {
  byId("bulk-label-box").hidden = action.value !== "relabel";
  const checking = { remove: "Wrong:", keep: "Right:", relabel: "Relabel" };
  const verb = { remove: "Remove", keep: "Keep", relabel: "Relabel", undecided: "Clear the decision for", ...(partOf(ids[0]) === "validation" ? checking : {}) }[action.value];
  confirm.textContent = `${verb} ${count(ids.length, "instance")}`;
  confirm.disabled = true;
  const now = ++asked;
  try {
    const answer = await post("/api/preview", { changes: [[action.value, newLabel(), ids]] });
    if (now !== asked) return;
    confirm.disabled = false;
    show(byId("bulk-effect"),
      answer.changed ? h("p", {}, `${count(answer.changed, "of them has", "of them have")} a different decision, which would be replaced.`) : null,
      answer.warnings.length ? h("ul", { class: "warning-list" }, answer.warnings.map((warning) => h("li", {}, h("strong", {}, "Warning: "), data(warning)))) : null,
      h("p", { class: "quiet" }, "Undo reverts all of it in one step."));
  } catch (error) {
    if (now === asked) show(byId("bulk-effect"), h("p", { class: "problem" }, error.message));
  }
}

function carryOut() {
  dialog.close();
  const words = confirm.textContent;
  decide(ids, action.value, newLabel(), "bulk").then((answer) => answer && say(`Saved: ${words}. Undo reverts it.`));
}
