// The head of the page: the progress of the review, whether it is saved, and warnings.

import { byId, data, h, printable, show } from "./dom.js";
import { waitingCount } from "./save.js";
import { on, project, standing } from "./state.js";
import { count } from "./words.js";

let warned = "";
let offline = null;

export function start() {
  const { counts, runs } = project;
  show(byId("about"), `${count(counts.train, "training instance")} · ${count(runs, "run")}`);
  on("standing", draw);
  on("saving", saving);
  on("problem", problem);
  on("connection", (message) => {
    if (byId("saved").dataset.state === "failed") return; // that says more
    if (message) problem(message);
    else if (offline !== null && printable(offline) === byId("problem").textContent) problem("");
    offline = message;
  });
  saving({ state: "saved" });
}

function draw() {
  const { keep, remove, relabel, suggested, suggested_decided: done, checked, to_check: wanted, to_check_decided: checkedOfThem } = standing.progress;
  const bar = byId("progress");
  bar.max = suggested || wanted || project.counts.train;
  bar.value = suggested ? done : wanted ? checkedOfThem : keep + remove + relabel;
  const decided = keep + remove + relabel;
  const ofPlan = suggested ? ` (${done} of ${suggested.toLocaleString("en")} in the plan)` : "";
  const actions = decided ? `: ${remove} remove, ${relabel} relabel, ${keep} keep` : "";
  const ofChecks = wanted ? `${checkedOfThem} of ${wanted} labels checked` : checked ? `${count(checked, "label")} checked` : "";
  const ofAll = decided || suggested || !ofChecks ? `${decided.toLocaleString("en")} decided${ofPlan}${actions}` : ""; // with labels to check alone, nothing else is asked for
  byId("progress-text").textContent = [ofAll, ofChecks].filter(Boolean).join(" · ");
  byId("undo").disabled = !standing.undoable && !waitingCount();
  byId("redo").disabled = !standing.redoable;
  const text = standing.warnings.join("\n");
  if (text === warned) return; // said once, not with every poll
  warned = text;
  const [first3, more] = [standing.warnings.slice(0, 3), standing.warnings.length - 3];
  show(byId("warnings"), first3.map((warning) => h("p", {}, h("strong", {}, "Warning: "), data(warning))), more > 0 ? h("p", {}, `And ${count(more, "more class", "more classes")}.`) : null);
}

function saving({ state, count: waiting, message }) {
  const place = byId("saved");
  place.dataset.state = state;
  if (state === "saved") {
    place.textContent = "Saved";
    if (byId("problem").textContent.startsWith("Not saved")) problem("");
  } else if (state === "saving") {
    place.textContent = "Saving …";
    byId("undo").disabled = false;
  } else {
    place.textContent = "Not saved yet";
    problem(`Not saved yet: ${message} ${count(waiting, "decision is", "decisions are")} waiting; dross retries automatically.`);
  }
}

function problem(message) {
  const text = printable(message);
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
}
