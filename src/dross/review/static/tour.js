// Four steps for people who have never seen this page. Shown once, and again from the help.

import { byId, h, show } from "./dom.js";
import { set, setting } from "./settings.js";
import { project, standing } from "./state.js";

const STEPS = [
  { at: "plan", title: "The recommendation", text: () => `dross recommends a plan only if models improve by more than chance would explain, on held-out instances. ${nextStep()}` },
  { at: "list", title: "The list", text: "Each instance shows its label, the predicted label with its probability, and its effect: below zero means that the expected error is lower without it. Click an instance or use the arrow keys; the tabs above open other lists." },
  { at: "why", or: "list", title: "Why", text: "This panel explains why the selected instance is listed. Read it before you decide: an instance can be harmful without being wrong." },
  { at: "actions", title: "Decide", text: "Keep, remove or relabel with a button or a single key. Every decision is saved immediately. “Verdict” trains new models and tests whether your decisions help." },
];

/** What the first step asks for: only buttons that are there. */
function nextStep() {
  if (project.plan.count) return "“Accept the plan” applies all of its decisions in one step; you can change or undo each of them.";
  if (standing.progress.to_check) return "Here it recommends no change yet: “Check labels” lists the labels that would decide whether to recommend one.";
  return "Here it recommends no change. You can still decide on any instance yourself.";
}

const dialog = byId("tour");
let place = 0;

export function start() {
  byId("tour-next").addEventListener("click", () => (place + 1 < STEPS.length ? go(place + 1) : dialog.close()));
  byId("tour-back").addEventListener("click", () => go(place - 1));
  byId("start-tour").addEventListener("click", () => {
    byId("help").close();
    open();
  });
  dialog.addEventListener("close", () => {
    set("tour", "seen");
    highlight(null);
  });
}

export const wanted = () => setting("tour") !== "seen";

export function open() {
  dialog.showModal();
  go(0);
}

function go(next) {
  place = next;
  const step = STEPS[place];
  const target = byId(step.or && byId(step.at).hidden ? step.or : step.at);
  byId("tour-title").textContent = step.title;
  show(byId("tour-text"), h("p", {}, typeof step.text === "function" ? step.text() : step.text));
  byId("tour-place").textContent = `Step ${place + 1} of ${STEPS.length}`;
  byId("tour-back").hidden = place === 0;
  byId("tour-skip").hidden = place + 1 === STEPS.length;
  byId("tour-next").textContent = place + 1 < STEPS.length ? "Next" : "Done";
  highlight(target);
  put(target.getBoundingClientRect());
  byId("tour-title").focus();
}

function highlight(target) {
  for (const element of document.querySelectorAll(".toured")) element.classList.remove("toured");
  target?.classList.add("toured");
}

/** Below what it is about, else above it, else inside; within the window in any case. */
function put(box) {
  const { offsetHeight: height, offsetWidth: width } = dialog;
  const below = box.bottom + 8;
  const above = box.top - height - 8;
  const top = below + height < innerHeight ? below : above > 0 ? above : box.top + 24;
  dialog.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
  dialog.style.left = `${Math.max(8, Math.min(box.left + 24, innerWidth - width - 8))}px`;
}
