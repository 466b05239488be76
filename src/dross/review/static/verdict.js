// The verdict: start `dross judge`, watch it, and see what it found.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { byId, data, h, show } from "./dom.js";
import { on, standing, tell } from "./state.js";
import { count, percent, signed } from "./words.js";

const dialog = byId("verdict");
let state = "idle";

export function start() {
  byId("judge-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await ask("/api/judge", { seeds: Number(byId("seeds").value), quick: byId("quick").checked });
  });
  byId("quick").addEventListener("change", (event) => (byId("seeds").disabled = event.target.checked)); // it has its own number
  byId("judge-cancel").addEventListener("click", () => ask("/api/judge/cancel", {}));
  on("judge", watch);
}

export async function open() {
  dialog.showModal();
  byId("verdict-title").focus();
  get("/api/judge").then(watch, trouble);
  await showVerdicts();
}

const trouble = (error) => show(byId("judge-state"), h("p", { class: "problem" }, error.message));

async function ask(path, body) {
  show(byId("judge-state"));
  try {
    watch(await post(path, body));
    tell("poll-soon");
  } catch (error) {
    trouble(error);
  }
}

/** A status of the server, which comes with every poll. */
function watch(status) {
  const running = status.state === "running" || status.state === "elsewhere";
  const ended = state === "running" && !running;
  const { progress } = standing;
  byId("judge-start").disabled = running;
  byId("judge-cancel").hidden = status.state !== "running";
  if (running) {
    const where = status.state === "elsewhere" ? "A judgement that was started elsewhere is running" : "Judging";
    const words = status.of ? `${where}: ${status.done} of ${status.of}${status.stage ? `, ${status.stage}` : ""}` : `${where} …`;
    const bar = h("progress", { max: status.of || 1, "aria-label": "Judgement" });
    if (status.of) bar.value = status.done;
    show(byId("judge-progress"), h("p", {}, data(words)), bar);
    if (state !== status.state) show(byId("judge-state"), h("p", { class: "unseen" }, "The judgement has started."));
  } else {
    show(byId("judge-progress"), h("p", { class: "quiet" }, `To be judged: ${count(progress.remove ?? 0, "removal")}, ${count(progress.relabel ?? 0, "new label")}.`));
    if (status.state === "failed") show(byId("judge-state"), h("p", { class: "problem" }, "The judgement failed. It said:"), h("pre", { tabindex: 0, "aria-label": "Output of dross judge" }, status.output || "nothing"));
    else if (ended && status.state === "cancelled") show(byId("judge-state"), h("p", {}, "Cancelled. Nothing was changed."));
    else if (ended) show(byId("judge-state"), h("p", {}, "The judgement is done."));
  }
  if (ended && status.state === "done") showVerdicts();
  state = status.state;
}

async function showVerdicts() {
  try {
    const { verdicts } = await get("/api/verdicts");
    const newest = [...verdicts].reverse();
    show(byId("verdicts"), newest.length ? newest.map(build) : h("p", { class: "quiet" }, "There is no verdict yet."));
  } catch (error) {
    trouble(error);
  }
}

function build(verdict, place) {
  const title = { improved: "Improved", worse: "Worse", inconclusive: "Inconclusive" }[verdict.verdict] ?? verdict.verdict;
  const head = h("h3", {}, h("span", { class: `outcome ${verdict.verdict === "improved" ? "good" : verdict.verdict === "worse" ? "bad" : ""}` }, title), " ",
    h("span", { class: "quiet small" }, `${String(verdict.made).slice(0, 16).replace("T", " ")}, ${verdict.what}: ${verdict.removed} removed, ${verdict.relabelled} relabelled, ${count(verdict.seeds, "seed")}`),
    verdict.model ? h("span", { class: "quiet small" }, ", judged by ", data(verdict.model)) : null);
  const inside = [
    h("p", { class: "sentence" }, data(verdict.sentence)),
    verdict.advice ? h("p", { class: "quiet" }, data(verdict.advice)) : null,
    Object.entries(verdict.metrics).map(([name, metric], order) => metricView(name, name, metric, order === 0)),
    Object.entries(verdict.plain ?? {}).map(([name, metric]) => metricView(name, `${name}, all given labels counted as right`, metric, false)),
    perClass(verdict.per_class ?? []),
  ];
  if (place === 0) return h("section", { class: "verdict" }, head, inside);
  return h("details", { class: "verdict" }, h("summary", {}, `Earlier: ${title}, ${String(verdict.made).slice(0, 16).replace("T", " ")}`), head, inside);
}

const shownValue = (name, value) => (name === "error" ? `${(100 * value).toFixed(2)} %` : String(Number(value.toPrecision(4))));
const shownChange = (name, value) => (name === "error" ? `${signed(100 * value)} points` : signed(value));

function metricView(name, words, metric, large) {
  const range = ([low, high]) => `95 % interval ${shownChange(name, low)} to ${shownChange(name, high)}`;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const rows = [["after", metric.difference, metric.interval], ["as many random edits", metric.random_difference, metric.random_interval]];
  return h("div", { class: "metric" },
    h("h4", {}, words.charAt(0).toUpperCase() + words.slice(1)),
    h("p", {}, `Before ${shownValue(name, mean(metric.before))}, after ${shownValue(name, mean(metric.after))}, as many random edits ${shownValue(name, mean(metric.random))} on average.`),
    large ? chart(name, metric, shownValue, shownChange) : null,
    h("ul", {}, rows.filter(([, value]) => value !== null && value !== undefined).map(([who, value, interval]) => h("li", {}, h("strong", {}, `${who}: ${shownChange(name, value)}`), `, ${range(interval)}`))),
    h("details", {}, h("summary", {}, "The numbers, seed by seed"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${words} per seed` }, h("table", {},
        h("thead", {}, h("tr", {}, ["Seed", "Before", "After", "Random"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, metric.before.map((value, seed) => h("tr", {}, h("th", { scope: "row" }, seed + 1), [value, metric.after[seed], metric.random[seed]].map((each) => h("td", { class: "number" }, each === undefined ? "" : shownValue(name, each)))))))))); 
}

function perClass(classes) {
  if (!classes.length) return null;
  return [h("h4", {}, "Per class"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Error per class" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Class", "Instances", "Error before", "Error after", "Change"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, classes.map((entry) => h("tr", {}, h("th", { scope: "row" }, data(entry.class)), h("td", { class: "number" }, entry.count),
      h("td", { class: "number" }, percentOf(entry.before)), h("td", { class: "number" }, percentOf(entry.after)), h("td", { class: "number" }, change(entry)))))))];
}

const percentOf = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);
const change = (entry) => (entry.after < entry.before ? "better " : entry.after > entry.before ? "worse " : "same ") + percentOf(Math.abs(entry.after - entry.before));
