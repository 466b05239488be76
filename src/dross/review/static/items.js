// How one instance looks in the list: a tile, a passage of text, or a row of a table.

import { thumbnail } from "./api.js";
import { data, h, printable } from "./dom.js";
import { marked } from "./mark.js";
import { decisionOf, partOf, project } from "./state.js";
import { tokenSpans } from "./tokens.js";
import { adviceWord, decisionWord, percent, signed } from "./words.js";

/** How each kind of data is listed. width: in rem; narrow: below 45 rem of it. */
export const SHAPES = {
  images: { role: "listbox", across: (width, narrow) => Math.max(1, Math.floor(width / (narrow && project.classes.every((name) => name.length <= SHORT) ? 7.9 : 10.2))) },
  text: { role: "listbox", across: () => 1 },
  chats: { role: "listbox", across: () => 1 },
  table: { role: "grid", across: () => 1 },
};
const LONGEST = 80; // letters of a class in the list; the panel has all of them
const SHORT = 12; // letters of a class for which a narrow tile is wide enough
const SAMPLED = 3; // of the longest classes, to measure with
const nameWidths = { label: 8, prediction: 11 }; // of the columns, in rem

export function buildItem(item) {
  return { images: tile, text: passage, chats: chat, table: row }[project.layout](item);
}

export function updateDecision(element, id, item) {
  const decision = decisionOf(id);
  element.dataset.decision = decision ? decision[0] : "undecided";
  const badge = element.querySelector(".decision");
  if (!badge) return;
  const words = decision ? decisionWord(decision, partOf(id)) : item ? adviceWord(item) : "–";
  badge.replaceChildren(data(words));
  badge.title = printable(words);
}

/** Items with the longest names there are: no row has to be taller. */
function samples() {
  const names = project.layout === "chats" ? [""] : project.classes.length ? [...project.classes].sort((a, b) => b.length - a.length).slice(0, SAMPLED) : ["-1234567.89"];
  const passage = "word ".repeat(200);
  return names.map((name) => ({
    id: -1, place: 0, source: "row 12345", label: name, prediction: name && `${name} `, probability: 1, effect: -0.0001, action: "relabel", confidence: 1, wrong: 1,
    copy: null, cells: [], unusual: {}, text: passage, words: [], origin: "", tokens: [[passage, null]],
  }));
}

/** The height in pixels that every row needs, at the width that the canvas has; across: how many items are in a row. */
export function measureItems(canvas, across, rem) {
  const wide = project.layout === "table" && !canvas.closest(".narrow");
  const shown = samples().map((item) => {
    const element = h("div", { class: "item sample", "aria-hidden": "true" }, buildItem(item));
    element.style.width = `${100 / across}%`;
    updateDecision(element, item.id, item);
    canvas.append(element);
    return element;
  });
  if (wide) {
    const natural = (place) => Math.max(...shown.map((element) => element.children[place].scrollWidth));
    for (const element of shown) element.style.gridTemplateColumns = "max-content ".repeat(5);
    for (const element of shown) for (const cell of element.querySelectorAll(".chip")) cell.style.whiteSpace = "nowrap";
    nameWidths.label = Math.min(12.5, Math.max(5.5, natural(1) / rem + 0.3));
    nameWidths.prediction = Math.min(15.5, Math.max(8, natural(2) / rem + 0.3));
    for (const element of shown) {
      element.style.gridTemplateColumns = columnWidths().join(" ");
      for (const cell of element.querySelectorAll(".chip")) cell.style.whiteSpace = "";
    }
  }
  const height = Math.max(...shown.map((element) => element.offsetHeight));
  for (const element of shown) element.remove();
  return Math.max(height, wide ? 2.6 * rem : 0);
}

/** Wide tables: the same widths for the head and for every row. */
export function columnWidths() {
  return ["8.5rem", `${nameWidths.label}rem`, `${nameWidths.prediction}rem`, "8.2rem", "4.8rem", ...project.columns.map((column) => `${Math.max(4.5, 0.62 * column.width + 2.4)}rem`)];
}

export function tableHead() {
  const effect = project.unit ? `Effect,${project.unit}` : "Effect";
  const names = ["Decision", "Label", "Predicted", [effect, "Wrong"], ["Sure", ""], ...project.columns.map((column) => column.name)];
  const either = ([train, check]) => [h("span", { "data-of": "train" }, train), h("span", { "data-of": "validation" }, check)];
  const head = h("div", { class: "head row", role: "row", "aria-rowindex": 1 }, names.map((name) => h("span", { role: "columnheader" }, Array.isArray(name) ? either(name) : data(name))));
  return head;
}

const meaning = (item) => (item.part === "validation" ? "the probability that the label is wrong" : `estimated change in the ${project.measure} without it`);
const effectWord = (item, unit = project.unit) => {
  if (item.part === "validation") return item.wrong === null ? "" : percent(item.wrong) + (unit === null ? "" : " wrong");
  return item.effect === null ? "" : signed(item.effect) + (unit ?? "");
};
const SURE = "the probability that acting on this instance is right";
const effect = (item) => h("span", { class: "effect", title: meaning(item) }, effectWord(item), item.confidence === null ? null : h("span", { class: "confidence", title: SURE }, ` · ${percent(item.confidence)} sure`));
const copyMark = (item) => (item.copy ? h("span", { class: item.copy.leaks ? "copy leaks" : "copy", title: item.copy.words }, `≡${item.copy.group + 1}`, h("span", { class: "unseen" }, " ", item.copy.words), " ") : null);
const decision = () => h("span", { class: "decision" });
const differs = (item) => item.label !== item.prediction;
const predictionClass = (item) => "chip" + (item.prediction && differs(item) ? " differs" : "");
const sure = (item) => (item.probability === null ? "" : ` ·\u00a0${percent(item.probability)}`);

/** A class as the list shows it: whole, unless its name is absurdly long. */
function className(name) {
  const letters = [...name];
  return data(letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : name);
}

function chips(item) {
  return h("span", { class: "chips" },
    h("span", { class: "chip", title: item.label }, copyMark(item), h("span", { class: "what" }, "label "), className(item.label)),
    item.prediction ? h("span", { class: predictionClass(item), title: item.prediction + sure(item) }, h("span", { class: "what" }, "predicted "), className(item.prediction), sure(item)) : null); // "": no model was asked
}

function tile(item) {
  const image = h("img", { src: thumbnail(item.image_part ?? "train", item.place ?? item.id), alt: `Image ${item.source}, labeled ${item.label}`, decoding: "async", draggable: "false" });
  return [image, chips(item), h("span", { class: "line" }, decision(), h("span", { class: "effect", title: meaning(item) }, effectWord(item)))];
}

function passage(item) {
  const top = h("span", { class: "line" }, decision(), chips(item), effect(item), data(item.source, { class: "source" }));
  return [top, h("span", { class: "passage", dir: "auto" }, marked(item.text, item.words))];
}

function chat(item) {
  const origin = item.origin || item.copy ? h("span", { class: "chip", title: item.origin }, copyMark(item), item.origin ? [h("span", { class: "what" }, "from "), data(item.origin)] : null) : null;
  const top = h("span", { class: "line" }, decision(), h("span", { class: "chips" }, origin), effect(item), data(item.source, { class: "source" }));
  return [top, h("span", { class: "passage", dir: "auto" }, tokenSpans(item.tokens))];
}

function row(item) {
  const cell = (children, name, extra = {}) => h("span", { role: "gridcell", "data-name": name, ...extra }, children);
  const lead = [
    h("span", { role: "gridcell", class: "decision" }),
    cell([copyMark(item), className(item.label)], "label", { class: "chip", title: item.label }),
    cell([className(item.prediction), sure(item)], "predicted", { class: predictionClass(item), title: item.prediction + sure(item) }),
    cell(effectWord(item, null), item.part === "validation" ? "label wrong" : "effect", { class: "effect", title: meaning(item) }),
    item.confidence === null ? h("span", { role: "gridcell" }) : cell(percent(item.confidence), "sure", { class: "effect", title: SURE }),
  ];
  const cells = item.cells.map((value, place) => {
    const name = project.columns[place].name;
    const odd = Object.hasOwn(item.unusual, name) ? item.unusual[name] : null;
    return cell([odd !== null ? h("span", { class: "odd-mark" }, h("span", { "aria-hidden": "true" }, "▲"), h("span", { class: "unseen" }, "unusual: ")) : null,
      value === null ? h("span", { class: "missing" }, "missing") : data(value)], name, { class: odd !== null ? "value odd" : "value", title: odd ?? value });
  });
  return [...lead, ...cells];
}
