// The recommended plan: its edits, its reason, its confidence, the other plans, and one key that accepts it.

import { byId, data, h, say, show } from "./dom.js";
import * as list from "./list.js";
import { takePlan } from "./save.js";
import { set, setting } from "./settings.js";
import { on, project, standing } from "./state.js";
import { count } from "./words.js";

const box = byId("plan-box");
const button = byId("take-plan");
const SECONDS_PER_CHECK = 4.5; // as in findings.py
let counted = "";
const small = matchMedia("(max-width: 45rem), (max-height: 40rem)");

/** look: shows the list of what the plan touches; check: that of the labels to check. */
export function start(look, check) {
  const { plan } = project;
  byId("plan-what").replaceChildren(data(plan.what));
  byId("plan-why").replaceChildren(data(plan.why));
  byId("plan-checked").hidden = !plan.checked;
  byId("plan-checked").replaceChildren(data(plan.checked));
  byId("plan-command").replaceChildren(data(plan.command ?? ""));
  byId("plan").hidden = false;
  button.hidden = byId("look-plan").hidden = !plan.count;
  button.addEventListener("click", take);
  byId("look-plan").addEventListener("click", look);
  byId("check-labels").addEventListener("click", check);
  byId("open-plans").addEventListener("click", open);
  byId("open-plans").hidden = !plan.figure && !plan.others.length;
  box.open = !small.matches && setting("plan") !== "closed";
  box.addEventListener("toggle", () => small.matches || set("plan", box.open ? "" : "closed"));
  on("standing", draw);
}

/** One step for the whole plan; what a person has decided stays. */
export async function take() {
  if (!project.plan.count) return tellState("The recommendation is to change nothing, so there is no plan to accept.");
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
  drawChecks();
  button.disabled = decided === suggested;
  if (!suggested) return;
  const otherwise = decided - followed;
  const words = decided ? `${followed.toLocaleString("en")} of ${suggested.toLocaleString("en")} decided as recommended${otherwise ? `, ${otherwise.toLocaleString("en")} differently` : ""}.` : "";
  if (words === counted) return; // what was said last stays until something changes
  byId("plan-state").textContent = counted = words;
}

/** What to check, the progress, and what to do then. */
function drawChecks() {
  const { to_check: wanted, to_check_decided: done } = standing.progress;
  byId("plan-checks").hidden = !wanted;
  byId("check-labels").hidden = !wanted || done === wanted;
  byId("check-labels").classList.toggle("primary", !project.plan.count);
  byId("plan-command").hidden = !done || !project.plan.command;
  if (!wanted) return;
  const minutes = Math.max(1, Math.round((wanted * SECONDS_PER_CHECK) / 60));
  const again = project.plan.command ? "Then run this command again; it uses your answers:" : "Then call dross.clean(...) again as before; it uses your answers.";
  const words = !done ? `Check these ${count(wanted, "label")} (about ${count(minutes, "minute")}). Then run the same dross clean command again; it uses your answers.`
    : done < wanted ? `${done} of ${count(wanted, "label")} checked. ${again}`
    : `All ${count(wanted, "label")} are checked. ${again.replace("Then", "Now")}`;
  if (byId("plan-checks").textContent !== words) byId("plan-checks").textContent = words;
}

function open() {
  const { plan } = project;
  const cell = ({ before, after, change, interval }) => h("td", { class: "number" }, `${before} → ${after}`, h("span", { class: "interval-words" }, `${change} (${interval})`));
  const rows = plan.others.map((other) =>
    h("tr", other.recommended ? { class: "chosen" } : {}, h("th", { scope: "row" }, data(other.name), other.recommended ? " (recommended)" : ""),
      h("td", {}, data(other.what), other.rule ? h("span", { class: "interval-words" }, other.rule) : null), other.figures.map(cell)));
  const titles = ["Plan", "What it does", ...plan.measures];
  const figure = plan.figure && h("figure", {}, h("img", { class: "plans-figure", src: plan.figure, alt: "How each plan changes the error and the log loss, with intervals. The table has the numbers." }),
    h("figcaption", {}, `The change under each plan on held-out instances, with its 95 % confidence interval. Below zero is better.${project.plan.count ? " The recommended plan is blue." : ""}`));
  const kind = project.layout === "chats" ? "" : project.classes.length ? "The error counts every label as correct; the log loss accounts for wrong labels. " : "In the squared error, each error is capped at the size above which the label is more likely wrong than right. ";
  const meaning = `Each cell: before → after, the change, and its 95 % confidence interval, on held-out instances. ${kind}To use another plan, pass its name to dross judge or dross export with --plan.`;
  const table = rows.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The plans" }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows)));
  show(byId("plans-body"), figure, table, rows.length ? h("p", { class: "quiet small" }, meaning) : null);
  byId("plans").showModal();
  byId("plans-title").focus();
}
