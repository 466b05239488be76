// Text with the words that matter marked: those that speak for the given label, and those that speak against it.

import { h } from "./dom.js";

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** words: [[word, how much it speaks for the label], ...] -> strings and <mark> elements */
export function marked(text, words) {
  const weights = new Map(words.filter(([word]) => word).map(([word, weight]) => [String(word).toLowerCase(), weight]));
  if (!weights.size) return [text];
  const longestFirst = [...weights.keys()].sort((a, b) => b.length - a.length).map(escaped);
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${longestFirst.join("|")})(?![\\p{L}\\p{N}])`, "giu");
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const weight = weights.get(match[0].toLowerCase()) ?? 0;
    pieces.push(text.slice(end, match.index));
    pieces.push(h("mark", { class: weight < 0 ? "against" : "for", title: weight < 0 ? "speaks against the label" : "speaks for the label" }, match[0]));
    end = match.index + match[0].length;
  }
  return [...pieces, text.slice(end)];
}
