// Numbers as a person reads them.

export function amount(value) {
  const size = Number(Math.abs(value ?? 0).toPrecision(2)); // 0.0000999 is 0.00010
  if (!size) return "0";
  if (size < 1e-5) return size.toExponential(1).replace("e-", "e−");
  return size.toFixed(Math.max(0, 1 - Math.floor(Math.log10(size))));
}

export const signed = (value) => (value < 0 ? "−" : value > 0 ? "+" : "") + amount(value);
export const percent = (share) => (share === null || share === undefined ? "" : `${Math.round(100 * share)}\u00a0%`);
export const count = (n, one, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** What the recommended plan does with an instance that nobody has decided on. */
export function adviceWord(item) {
  return item.action === "keep" ? "–" : `plan: ${item.action}`; // the label is beside it
}

/** A decision as a word: what is in the list and what is said aloud. part: whose instance it is about. */
export function decisionWord(decision, part = "train") {
  if (!decision) return "Undecided";
  const [action, label] = decision;
  if (part === "validation") return { keep: "Right", remove: "Wrong", relabel: `Should be ${label}` }[action] ?? "Undecided";
  return { keep: "Keep", remove: "Remove", relabel: `Relabel: ${label}` }[action] ?? "Undecided";
}
