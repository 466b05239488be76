// Text with the words that matter marked: evidence for the given label, and evidence against it.

import { h } from "./dom.js";

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** words: [[word, how far it supports the label], ...] -> strings and <mark> elements */
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
    pieces.push(h("mark", { class: weight < 0 ? "against" : "for", title: weight < 0 ? "evidence against the label" : "evidence for the label" }, match[0]));
    end = match.index + match[0].length;
  }
  return [...pieces, text.slice(end)];
}
