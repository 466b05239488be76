// The recommended plan: what, why, how sure, what others would have given, and one key that accepts it.

import { byId, data, h, say, show } from "./dom.js";
import * as list from "./list.js";
import { takePlan } from "./save.js";
import { set, setting } from "./settings.js";
import { on, project, standing } from "./state.js";
import { count } from "./words.js";

const box = byId("plan-box");
const button = byId("take-plan");
let counted = "";
const small = matchMedia("(max-width: 45rem), (max-height: 40rem)");

/** look: shows the list of what the plan touches. */
export function start(look) {
  const { plan } = project;
  byId("plan-what").replaceChildren(data(plan.what));
  byId("plan-why").replaceChildren(data(plan.why));
  byId("plan-doubt").hidden = !plan.disagreement;
  if (plan.disagreement) byId("plan-doubt").replaceChildren(data(plan.disagreement));
  byId("plan").hidden = false;
  button.hidden = byId("look-plan").hidden = !plan.count;
  button.addEventListener("click", take);
  byId("look-plan").addEventListener("click", look);
  for (const id of ["open-plans", "plan-thumb"]) byId(id).addEventListener("click", open);
  byId("open-plans").hidden = !plan.picture && !plan.others.length;
  byId("plan-thumb").hidden = !plan.picture;
  if (plan.picture) byId("plan-thumb").append(h("img", { src: plan.picture, alt: "What every plan that was tried would have achieved; show it larger" }));
  box.open = !small.matches && setting("plan") !== "closed";
  box.addEventListener("toggle", () => small.matches || set("plan", box.open ? "" : "closed"));
  on("standing", draw);
}

/** One step for the whole plan; what a person has decided stays. */
export async function take() {
  if (!project.plan.count) return tellState("It is recommended to change nothing, so there is no plan to accept.");
  if (document.activeElement === button) list.focusSelected(); // it is switched off when it has done its work
  const answer = await takePlan();
  if (answer) tellState(answer.taken ? `Accepted: ${count(answer.taken, "instance")} decided. Undo reverts all of it.` : "Everything in the plan is already decided.");
}

function tellState(text) {
  byId("plan-state").textContent = text;
  say(text);
}

function draw() {
  const { suggested, suggested_decided: decided, suggested_followed: followed } = standing.progress;
  button.disabled = decided === suggested;
  if (!suggested) return;
  const otherwise = decided - followed;
  const words = decided ? `${followed.toLocaleString("en")} of ${suggested.toLocaleString("en")} decided as recommended${otherwise ? `, ${otherwise.toLocaleString("en")} otherwise` : ""}.` : "";
  if (words === counted) return; // what was said last stays until something changes
  byId("plan-state").textContent = counted = words;
}

const percentage = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

function open() {
  const { plan } = project;
  const number = (text) => h("td", { class: "number" }, text);
  const rows = plan.others.map((other) =>
    h("tr", other.recommended ? { class: "chosen" } : {}, h("th", { scope: "row" }, data(other.name), other.recommended ? " (recommended)" : ""),
      number(other.change === null ? "" : percentage(100 * other.change)), number(other.error === null ? "" : (100 * other.error).toFixed(2)), other.by_kind.map((change) => number(percentage(100 * change))), h("td", {}, data(other.what))));
  const titles = ["Plan", "Change of mistakes, %", "Standard error", ...plan.kinds.map((kind) => `Change with ${kind}, %`), "What it does"];
  const picture = plan.picture && h("figure", {}, h("img", { class: "plans-picture", src: plan.picture, alt: "The change of the error against how many instances a plan touches, one line for each kind of plan. The table has the best." }),
    h("figcaption", {}, "Every plan that was tried, on data that had no part in its ranking. Below zero is better; the circle is the recommended plan."));
  const table = rows.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The best plans" }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows)));
  show(byId("plans-body"), picture, table, rows.length ? h("p", { class: "quiet small" }, "To use another one, pass its name to dross judge or dross export with --plan.") : null);
  byId("plans").showModal();
  byId("plans-title").focus();
}
