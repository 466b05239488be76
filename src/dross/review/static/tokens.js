// The tokens of a chat, colored by what each does to the model.

import { h, printable } from "./dom.js";
import { project } from "./state.js";
import { signed } from "./words.js";

const LEVELS = 4;
const FAINT = 0.05; // of the strongest effect: less is not colored

/** "harms-3", "helps-1", or "" for an effect near 0. */
function effectClass(effect, scale) {
  const share = scale ? Math.abs(effect) / scale : 0;
  if (share < FAINT) return "";
  return `${effect < 0 ? "harms" : "helps"}-${Math.min(LEVELS, Math.ceil(LEVELS * share))}`;
}

function meaning(effect) {
  const words = effect < 0 ? "harms: the expected error falls without it" : effect > 0 ? "helps: the expected error rises without it" : "has no effect";
  return `${signed(effect)}${project.unit}, ${words}`;
}

/** tokens: [[text, effect or null], ...] -> elements; text that is not trained on is quiet. */
export function tokenSpans(tokens) {
  return tokens.map(([text, effect]) =>
    effect === null ? h("span", { class: "unlearnt" }, text) : h("span", { class: `token ${effectClass(effect, project.token_scale)}`, title: meaning(effect) }, printable(text)));
}

export function tokenLegend() {
  const sample = (kind, words) => h("span", { class: "legend-part" }, [4, 2, 1].map((level) => h("span", { class: `token ${kind}-${level}` }, "\u00a0\u00a0")), " ", words);
  return h("p", { class: "token-legend quiet small" }, sample("harms", "harms the model"), sample("helps", "helps the model"), h("span", { class: "legend-part unlearnt" }, "not trained on"));
}
