// How one instance looks in the list: a tile, a passage of text, or a row of a table.

import { thumbnail } from "./api.js";
import { data, h, printable } from "./dom.js";
import { marked } from "./mark.js";
import { decisionOf, partOf, project } from "./state.js";
import { tokenSpans } from "./tokens.js";
import { adviceWord, decisionWord, percent, signed } from "./words.js";

/** Heights in rem; narrow: below 45 rem of width. */
export const SHAPES = {
  images: { role: "listbox", height: () => 16, across: (width) => Math.max(1, Math.floor(width / 10.2)) },
  text: { role: "listbox", height: (narrow) => (narrow ? 11 : 7.6), across: () => 1 },
  chats: { role: "listbox", height: (narrow) => (narrow ? 11 : 7.6), across: () => 1 },
  table: { role: "grid", height: (narrow) => (narrow ? 8.2 : 2.7), across: () => 1 },
};

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

/** Wide tables: the same widths for the head and for every row. */
export function columnWidths() {
  return ["14.5rem", "8rem", "11.5rem", "8.2rem", "5.5rem", ...project.columns.map((column) => `${Math.max(4.5, 0.62 * column.width + 2.4)}rem`)];
}

export function tableHead() {
  const effect = project.unit ? `Effect,${project.unit}` : "Effect";
  const names = ["Decision", "Label", "Predicted", [effect, "Wrong"], ["Sure", ""], ...project.columns.map((column) => column.name)];
  const either = ([train, check]) => [h("span", { "data-of": "train" }, train), h("span", { "data-of": "validation" }, check)];
  const head = h("div", { class: "head row", role: "row", "aria-rowindex": 1 }, names.map((name) => h("span", { role: "columnheader" }, Array.isArray(name) ? either(name) : data(name))));
  head.style.gridTemplateColumns = columnWidths().join(" ");
  return head;
}

const meaning = (item) => (item.part === "validation" ? "the probability that the label is wrong" : `estimated change of the ${project.measure} without it`);
const effectWord = (item, unit = project.unit) => {
  if (item.part === "validation") return item.wrong === null ? "" : percent(item.wrong) + (unit === null ? "" : " wrong");
  return item.effect === null ? "" : signed(item.effect) + (unit ?? "");
};
const SURE = "how certain it is that acting on this instance is right";
const effect = (item) => h("span", { class: "effect", title: meaning(item) }, effectWord(item), item.confidence === null ? null : h("span", { class: "confidence", title: SURE }, ` · ${percent(item.confidence)} sure`));
const copyMark = (item) => (item.copy ? h("span", { class: item.copy.leaks ? "copy leaks" : "copy", title: item.copy.words }, `≡${item.copy.group + 1}`, h("span", { class: "unseen" }, " ", item.copy.words), " ") : null);
const decision = () => h("span", { class: "decision" });
const differs = (item) => item.label !== item.prediction;
const says = (item) => (item.prediction === "" ? "" : differs(item) ? "≠ " : "= "); // "": no model was asked
const saysClass = (item) => "chip" + (says(item) && differs(item) ? " differs" : "");
const sure = (item) => (item.probability === null ? "" : ` · ${percent(item.probability)}`);

function chips(item) {
  return h("span", { class: "chips" },
    h("span", { class: "chip", title: item.label }, copyMark(item), h("span", { class: "what" }, "label "), data(item.label)),
    says(item) ? h("span", { class: saysClass(item), title: item.prediction + sure(item) }, h("span", { class: "what" }, "models ", says(item)), data(item.prediction), sure(item)) : null);
}

function tile(item) {
  const image = h("img", { src: thumbnail(item.image_part ?? "train", item.place ?? item.id), alt: `Image ${item.source}, labelled ${item.label}`, decoding: "async", draggable: "false" });
  return [image, decision(), chips(item), h("span", { class: "effect", title: meaning(item) }, effectWord(item))];
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
    cell([copyMark(item), data(item.label)], "label", { class: "chip", title: item.label }),
    cell([says(item), data(item.prediction), sure(item)], "models", { class: saysClass(item), title: item.prediction + sure(item) }),
    cell(effectWord(item, null), "effect", { class: "effect", title: meaning(item) }),
    cell(percent(item.confidence), "sure", { class: "effect", title: SURE }),
  ];
  const cells = item.cells.map((value, place) => {
    const name = project.columns[place].name;
    const odd = Object.hasOwn(item.unusual, name) ? item.unusual[name] : null;
    return cell([odd !== null ? h("span", { class: "odd-mark" }, h("span", { "aria-hidden": "true" }, "▲"), h("span", { class: "unseen" }, "unusual: ")) : null,
      value === null ? h("span", { class: "missing" }, "missing") : data(value)], name, { class: odd !== null ? "value odd" : "value", title: odd ?? value });
  });
  return [...lead, ...cells];
}
