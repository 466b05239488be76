// The panel that says why an instance is in the list.

import { get, thumbnail } from "./api.js";
import { byId, data, h, show } from "./dom.js";
import * as list from "./list.js";
import { marked } from "./mark.js";
import { set, setting } from "./settings.js";
import { decisionOf, on, partOf, project, tell } from "./state.js";
import { tokenLegend, tokenSpans } from "./tokens.js";
import { amount, decisionWord } from "./words.js";

const panel = byId("why");
const body = byId("why-body");
const button = document.querySelector('[data-do="why"]');
const known = new Map(); // id -> promise of its explanation
const besides = matchMedia("(min-width: 60rem)"); // else the panel covers the list
let current = null;
let timer;

export const isOpen = () => !panel.hidden;

export function open({ focus = false } = {}) {
  panel.hidden = false;
  set("why", "open");
  settle();
  refresh();
  if (focus || !besides.matches) byId("why-title").focus();
}

export function close() {
  panel.hidden = true;
  if (besides.matches) set("why", "closed");
  settle();
  list.focusSelected();
}

export const toggle = () => (isOpen() ? close() : open());

/** A covering panel takes everything behind it out of reach; the buttons to decide stay. */
function settle() {
  const covering = isOpen() && !besides.matches;
  for (const id of ["top", "plan", "lists", "list"]) byId(id).inert = covering;
  button.setAttribute("aria-expanded", String(isOpen()));
}

export function start() {
  byId("close-why").addEventListener("click", close);
  besides.addEventListener("change", () => {
    panel.hidden = !besides.matches || setting("why") === "closed"; // nothing is covered unasked
    settle();
  });
  on("selected", (id) => {
    current = id;
    clearTimeout(timer);
    if (isOpen()) timer = setTimeout(refresh, 40);
  });
  on("decisions", (ids) => isOpen() && ids.includes(current) && showDecision());
  if (besides.matches && setting("why") !== "closed") panel.hidden = false;
  settle();
}

function explanation(id) {
  if (!known.has(id)) {
    const answer = get("/api/why", { id });
    answer.catch(() => known.delete(id));
    known.set(id, answer);
    if (known.size > 500) known.delete(known.keys().next().value);
  }
  return known.get(id);
}

async function refresh() {
  const id = current;
  if (id === null) return show(body, h("p", { class: "quiet" }, "Nothing is selected."));
  try {
    const why = await explanation(id);
    if (id !== current) return;
    show(body, build(why));
    showDecision();
    panel.scrollTop = 0;
    const next = list.idAt(list.selectedPlace() + 1);
    if (next !== null) explanation(next).catch(() => {});
  } catch (error) {
    if (id === current) show(body, h("p", { class: "problem" }, error.message));
  }
}

function showDecision() {
  const place = byId("why-decision");
  if (!place) return;
  const decision = decisionOf(current);
  place.dataset.decision = decision ? decision[0] : "undecided";
  place.replaceChildren(data(decisionWord(decision, partOf(current))));
}

function build(why) {
  return [
    h("p", { class: "why-source" }, data(why.source), " ", h("span", { id: "why-decision", class: "badge" })),
    project.layout === "images" ? enlargeable({ ...why, part: why.part ?? "train", id: why.place ?? why.id }, "large-image") : null,
    why.copies?.length ? others("Duplicates and near duplicates", why.copies, copy) : null,
    h("dl", { class: "reasons" }, why.sentences.map((entry) => h("div", {}, h("dt", {}, entry.about), h("dd", { dir: "auto" }, entry.text)))),
    content(why),
    why.hurts ? others("Held-out instances that it harms most", why.hurts, hurt) : null,
    why.similar ? others("Most similar training instances", why.similar, similar) : null,
  ];
}

function content(why) {
  if (why.content.tokens) return [h("h3", {}, "Text, token by token"), tokenLegend(), h("p", { class: "whole-text", dir: "auto" }, tokenSpans(why.content.tokens))];
  if (why.content.text !== undefined) {
    const legend = why.words.length ? h("p", { class: "quiet small" }, h("mark", { class: "for" }, "evidence for the label"), " ", h("mark", { class: "against" }, "evidence against it")) : null;
    return [h("h3", {}, "Text"), legend, h("p", { class: "whole-text", dir: "auto" }, marked(why.content.text, why.words))];
  }
  if (project.layout === "images") return null;
  const known = why.content.fields.some(([, , , weight]) => weight);
  const rows = why.content.fields.map(([name, value, odd, weight]) =>
    h("tr", odd ? { class: "odd" } : {}, h("th", { scope: "row" }, data(name)),
      h("td", {}, value === null ? h("span", { class: "missing" }, "missing") : data(value), odd ? h("span", { class: "odd-words" }, "▲ ", data(odd)) : null),
      known ? h("td", { class: "speaks" }, speaks(weight)) : null));
  return [h("h3", {}, "Values"), known ? h("p", { class: "quiet small" }, "Sorted by how much each value changes the prediction, compared with a typical value.") : null, h("table", {}, h("tbody", {}, rows))];
}

/** How a cell changes the prediction, compared with a typical value. */
function speaks(weight) {
  if (!weight) return "";
  if (!project.classes.length) return weight > 0 ? "↑ raises the prediction" : "↓ lowers the prediction";
  return weight > 0 ? "+ for the label" : "− against the label";
}

function others(title, entries, each) {
  return [h("h3", {}, title), entries.length ? h("ul", { class: "others" }, entries.map(each)) : h("p", { class: "quiet" }, "Not computed for this instance.")];
}

function hurt(entry) {
  const words = entry.change === null ? "its loss is lower without this instance; the size of the effect is not estimated" : `${hurtWords(entry.change)} without this instance${entry.verified ? ", verified" : ""}`;
  return beside(entry, h("span", { class: "small" }, words));
}

/** The loss of a class is -log p(label): a change of it is a factor of the probability. */
function hurtWords(change) {
  if (!project.classes.length) return `its squared error ${change < 0 ? "falls" : "rises"} by ${amount(change)}`;
  const factor = Math.exp(Math.abs(change));
  const more = change < 0 ? "more" : "less";
  if (factor >= 2) return `its label is ${more} likely by a factor of ${amount(factor)}`;
  const share = change < 0 ? factor - 1 : 1 - 1 / factor;
  return `its label is ${amount(100 * share)}\u00a0% ${more} likely`;
}

const lookAt = (entry) => h("button", { type: "button", class: "small", onclick: () => tell("go-to", entry.id) }, "Show it", h("span", { class: "unseen" }, " ", data(entry.source)));
const similar = (entry) => beside(entry, lookAt(entry));

function copy(entry) {
  const words = h("span", { class: "small" }, entry.how);
  return entry.part === "train" ? beside(entry, [words, lookAt(entry)]) : beside(entry, words);
}

function beside(entry, extra) {
  return h("li", {},
    project.layout === "images" ? enlargeable(entry) : null,
    h("div", {}, h("div", { class: "beside-head" }, h("span", { class: "chip" }, h("span", { class: "what" }, "label "), data(entry.label)), data(entry.source, { class: "source" }), extra),
      entry.brief ? h("p", { class: "brief", dir: "auto" }, entry.brief) : null));
}

/** A small image that opens as a large one. */
function enlargeable(entry, size = null) {
  return h("button", { type: "button", class: "enlarge", onclick: () => tell("enlarge", entry) },
    h("img", { class: size, src: thumbnail(entry.part, entry.id), alt: `Enlarge image ${entry.source}, labeled ${entry.label}` }),
    size ? h("span", { class: "enlarge-word", "aria-hidden": "true" }, "Enlarge ", h("kbd", {}, "z")) : null);
}
