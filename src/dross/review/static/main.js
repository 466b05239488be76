// Puts the parts of the page together.

import * as address from "./address.js";
import { get } from "./api.js";
import * as bulk from "./bulk.js";
import { byId, data, h, say } from "./dom.js";
import * as header from "./header.js";
import * as keys from "./keys.js";
import * as list from "./list.js";
import * as plan from "./plan.js";
import { askLabel } from "./relabel.js";
import { adoptLeftovers, decide, redo, undo } from "./save.js";
import { set, setting } from "./settings.js";
import { learn, on, partOf, project, standing, tell } from "./state.js";
import * as sync from "./sync.js";
import * as tour from "./tour.js";
import * as verdict from "./verdict.js";
import { count, decisionWord } from "./words.js";
import * as why from "./why.js";
import * as zoom from "./zoom.js";

const MEANINGS = {
  plan: "The edits of the recommended plan, the least certain first. Nothing changes until you accept the plan.",
  harmful: "Removing any one of these instances is estimated to lower the expected held-out error. The most harmful come first.",
  validation: "These labels are the most informative to check. Press k if the label is right, x if it is wrong, r to choose the right label.",
  copies: "Instances with exact or near duplicates in the training, validation or test set (≡ is the group number). A duplicate in another set makes every verdict too optimistic: remove it from one of the two sets. Of duplicates within the training set, keep one; if the labels differ, keep the one with the right label.",
  all: "Every training instance, from the most harmful to the most helpful.",
};
const MEANING_OF_TRUST = "All validation labels are counted as correct (--validation-is-clean), so none is listed.";

let filter = {};
let asked = 0;

async function load({ wanted = null, keepPlace = false } = {}) {
  const now = ++asked;
  try {
    const answer = await get("/api/list", filter);
    if (now !== asked) return;
    tell("problem", "");
    byId("refresh").hidden = true;
    list.setIds(answer.ids, wanted, keepPlace);
    const all = answer.total === answer.ids.length ? "" : `, the first ${answer.ids.length.toLocaleString("en")} shown`;
    byId("found").textContent = count(answer.total, "instance") + all;
    byId("open-bulk").disabled = !answer.ids.length;
  } catch (error) {
    if (now === asked) tell("problem", error.message);
  }
}

function showFilter() {
  const form = byId("filters");
  for (const name of address.FILTERS) if (form.elements[name]) form.elements[name].value = filter[name] ?? "";
  for (const link of document.querySelectorAll("[data-tab]")) {
    if (link.dataset.tab === filter.tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const special = { mislabeled: project.doubted && `${project.doubted} The most probable errors come first.`, validation: project.trusted && MEANING_OF_TRUST };
  byId("meaning").textContent = special[filter.tab] || (MEANINGS[filter.tab] ?? "");
  document.body.dataset.part = filter.tab === "validation" ? "validation" : "train";
  byId("plan-doubt").hidden = filter.tab !== "harmful" || !project.plan.disagreement;
  byId("plan-doubt").replaceChildren(data(project.plan.disagreement ?? ""));
  byId("clear").hidden = Object.keys(filter).length < 2;
}

function visit(next, wanted = null) {
  filter = next;
  address.visit(filter);
  showFilter();
  return load({ wanted });
}

function formFilter() {
  const form = byId("filters");
  const next = { tab: filter.tab };
  for (const name of address.FILTERS) {
    const value = form.elements[name]?.value.trim();
    if (value) next[name] = value;
  }
  return next;
}

function fromForm() {
  const next = formFilter();
  if (JSON.stringify(next) !== JSON.stringify(filter)) visit(next, list.selectedId());
}

function describeFilter() {
  const names = { q: "found by", class: "class", origin: "source", prediction: "label and prediction", state: "decision", min: "from", max: "up to" };
  const form = byId("filters");
  const words = (name) => (form.elements[name].tagName === "SELECT" ? form.elements[name].selectedOptions[0].textContent : filter[name]);
  const tab = document.querySelector('[aria-current="page"]').textContent;
  return [tab, ...address.FILTERS.filter((name) => filter[name]).map((name) => `${names[name]} ${words(name)}`)].join(", ");
}

function take(action, label = null) {
  const id = list.selectedId();
  if (id === null) return;
  const words = `${decisionWord([action, label], partOf(id))}, ${list.itemOf(id)?.source ?? ""}`;
  decide([id], action, label).then((answer) => answer && say(`Saved: ${words}`));
  if (setting("moveOn") === "on" && action !== "undecided") advance();
  else list.focusSelected();
}

/** On to the next; the focus follows unless a covering panel has it. */
function advance() {
  const place = list.selectedPlace() + 1;
  if (place < list.length()) list.select(place, { focus: !byId("list").inert });
  else say(filter.tab === "validation" ? byId("plan-checks").textContent : "That was the last one in the list.");
}

async function takeBack(verb, word) {
  const answer = await verb();
  if (!answer) return;
  if (!answer.event) return say(`There is nothing to ${word}.`);
  const { count: n, source, first } = answer.event;
  const what = n === 1 ? source : count(n, "instance");
  say(`${word === "undo" ? "Undone" : "Redone"}: ${what}`);
  if (list.placeOf(first) >= 0) list.select(list.placeOf(first), { focus: !byId("list").inert });
}

async function goTo(id) {
  if (list.placeOf(id) < 0) await visit({ tab: partOf(id) === "validation" ? "validation" : "all" }, id);
  list.select(list.placeOf(id), { focus: !byId("list").inert });
}

const actions = {
  keep: () => take("keep"),
  remove: () => take("remove"),
  undecided: () => take("undecided"),
  relabel: () => {
    if (project.layout === "chats") return say("Chats have no label. Keep or remove them.");
    list.withSelected((item) => askLabel(item, (label) => take("relabel", label)));
  },
  undo: () => takeBack(undo, "undo"),
  redo: () => takeBack(redo, "redo"),
  next: () => list.select(list.selectedPlace() + 1, { focus: !byId("list").inert }),
  previous: () => list.select(list.selectedPlace() - 1, { focus: !byId("list").inert }),
  why: why.toggle,
  zoom: () => {
    if (project.layout !== "images") return;
    list.withSelected((item) => zoom.open({ ...item, part: item.part ?? "train", id: item.place ?? item.id }));
  },
  bulk: async () => {
    await load({ wanted: list.selectedId(), keepPlace: true }); // what still fits the filter, not what did
    if (list.length()) bulk.open(Array.from({ length: list.length() }, (_, place) => list.idAt(place)), describeFilter());
  },
  plan: plan.take,
  verdict: verdict.open,
  search: () => {
    byId("filter-box").open = true;
    byId("filters").elements.q.focus();
  },
  help: () => byId("help").showModal(),
  escape: () => (why.isOpen() && byId("why").contains(document.activeElement) ? why.close() : list.focusSelected()),
};

function connect() {
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  for (const [id, action] of [["undo", actions.undo], ["redo", actions.redo], ["open-verdict", actions.verdict], ["open-help", actions.help], ["open-bulk", actions.bulk]]) byId(id).addEventListener("click", action);
  for (const button of document.querySelectorAll("dialog [data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  let typing;
  for (const link of document.querySelectorAll("[data-tab]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      clearTimeout(typing);
      visit({ ...formFilter(), tab: link.dataset.tab }); // with what was typed a moment ago
    });
  }
  const form = byId("filters");
  form.addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(fromForm, event.target.tagName === "SELECT" ? 0 : 250);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    fromForm();
    list.focusSelected();
  });
  form.addEventListener("keydown", (event) => event.key === "Escape" && list.focusSelected());
  byId("clear").addEventListener("click", () => visit({ tab: filter.tab }, list.selectedId()));
  byId("refresh").addEventListener("click", () => load({ wanted: list.selectedId(), keepPlace: true }));
  byId("move-on").checked = setting("moveOn") === "on";
  byId("move-on").addEventListener("change", (event) => set("moveOn", event.target.checked ? "on" : "off"));
  byId("who").value = setting("who");
  byId("who").addEventListener("change", (event) => set("who", event.target.value.trim()));
  on("selected", (id) => address.remember(filter, id));
  on("decisions", () => (byId("refresh").hidden = !filter.state));
  on("open-why", () => why.open());
  on("enlarge", zoom.open);
  on("go-to", goTo);
  addEventListener("popstate", () => {
    const there = address.read();
    filter = there.filter;
    showFilter();
    load({ wanted: there.item });
  });
  keys.start(actions);
  keys.inList(byId("list"), list, () => why.open({ focus: true }));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    list.focusSelected();
  });
}

async function begin() {
  const there = address.read();
  filter = there.filter;
  address.hideToken();
  const small = matchMedia("(max-width: 45rem), (max-height: 30rem)");
  byId("filter-box").open = !small.matches;
  small.addEventListener("change", () => (byId("filter-box").open = !small.matches)); // on large screens nothing opens it by hand
  try {
    const answer = await get("/api/project", { who: setting("who") });
    Object.assign(project, answer);
    const classes = byId("filters").elements.class;
    classes?.append(...project.classes.map((name) => h("option", { value: name }, name)));
    byId("filters").elements.origin?.append(...project.origins.map((name) => h("option", { value: name }, name)));
    standing.revision = -1;
    header.start();
    why.start();
    bulk.start();
    const lookAt = (tab) => () => visit({ tab }).then(list.focusSelected);
    plan.start(lookAt("plan"), lookAt("validation"));
    verdict.start();
    zoom.start();
    tour.start();
    connect();
    learn(answer);
    showFilter();
    adoptLeftovers();
    await load({ wanted: there.item });
    if (document.activeElement === document.body) list.focusSelected();
    sync.start();
    document.body.dataset.ready = "yes";
    if (tour.wanted()) tour.open();
  } catch (error) {
    byId("problem").replaceChildren(data(error.message));
    throw error;
  }
}

begin();
