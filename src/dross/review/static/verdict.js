// The verdict: start `dross judge`, follow it, and show its result.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { byId, data, h, show } from "./dom.js";
import { on, standing, tell } from "./state.js";
import { count, signed } from "./words.js";

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
    const where = status.state === "elsewhere" ? "dross judge, started elsewhere, is running" : "Judging";
    const words = status.of ? `${where}: ${status.done} of ${status.of}${status.stage ? `, ${status.stage}` : ""}` : `${where} …`;
    const bar = h("progress", { max: status.of || 1, "aria-label": "Progress of dross judge" });
    if (status.of) bar.value = status.done;
    show(byId("judge-progress"), h("p", {}, data(words)), bar);
    if (state !== status.state) show(byId("judge-state"), h("p", { class: "unseen" }, "dross judge has started."));
  } else {
    show(byId("judge-progress"), h("p", { class: "quiet" }, `To be judged: ${count(progress.remove ?? 0, "removal")}, ${count(progress.relabel ?? 0, "new label")}.`));
    if (status.state === "failed") show(byId("judge-state"), h("p", { class: "problem" }, "dross judge failed with this output:"), h("pre", { tabindex: 0, "aria-label": "Output of dross judge" }, status.output || "no output"));
    else if (ended && status.state === "cancelled") show(byId("judge-state"), h("p", {}, "Canceled. Nothing was changed."));
    else if (ended) show(byId("judge-state"), h("p", {}, "dross judge has finished."));
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
    h("span", { class: "quiet small" }, `${String(verdict.made).slice(0, 16).replace("T", " ")}, ${verdict.what}: ${verdict.removed} removed, ${verdict.relabeled} relabeled, ${count(verdict.seeds, "seed")}`),
    verdict.model ? h("span", { class: "quiet small" }, ", judged by ", data(verdict.model)) : null);
  const inside = [
    h("p", { class: "sentence" }, data(verdict.sentence)),
    verdict.advice ? h("p", { class: "quiet" }, data(verdict.advice)) : null,
    table(Object.keys(verdict.measures[0] ?? {}), verdict.measures.map(Object.values), "What changed"),
    Object.entries(verdict.metrics).slice(0, 1).map(([name, metric]) => chart(name, metric, shownValue, shownChange)),
    perClass(verdict.per_class ?? []),
    h("details", {}, h("summary", {}, "Seed by seed"), Object.entries(verdict.metrics).map(([name, metric]) => [h("h4", {}, name), seeds(name, metric)])),
  ];
  if (place === 0) return h("section", { class: "verdict" }, head, inside);
  return h("details", { class: "verdict" }, h("summary", {}, `Earlier: ${title}, ${String(verdict.made).slice(0, 16).replace("T", " ")}`), head, inside);
}

const shownValue = (name, value) => (name === "error" ? `${(100 * value).toFixed(2)} %` : String(Number(value.toPrecision(4))));
const shownChange = (name, value) => (name === "error" ? `${signed(100 * value)} points` : signed(value));

/** A table whose first column names the rows. */
function table(titles, rows, about) {
  const [first, ...others] = titles.map((title, place) => h("th", { scope: "col", class: place ? "number" : null }, title));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": about }, h("table", {},
    h("thead", {}, h("tr", {}, first, others)),
    h("tbody", {}, rows.map(([name, ...cells]) => h("tr", {}, h("th", { scope: "row" }, data(name)), cells.map((cell) => h("td", { class: "number" }, cell)))))));
}

const seeds = (name, metric) =>
  table(["seed", "before", "after", "random control"], metric.before.map((value, seed) => [seed + 1, ...[value, metric.after[seed], metric.random[seed]].map((each) => (each === undefined ? "" : shownValue(name, each)))]), `${name} per seed`);

function perClass(classes) {
  if (!classes.length) return null;
  return [h("h4", {}, "Per class"),
    table(["class", "rows measured", "error before", "error after", "change, points"],
      classes.map((entry) => [entry.class, entry.count, tenths(entry.before), tenths(entry.after)]).map(([name, rows, before, after]) => [name, rows, `${before.toFixed(1)} %`, `${after.toFixed(1)} %`, signed(after - before)]), "Error per class")];
}

/** A share in percent, rounded as it is shown, so that before, after and the change add up. */
const tenths = (share) => Math.round(1000 * share) / 10;
