// What is known here, and who wants to hear when it changes.

export const project = {}; // what the server says about the data; filled once
export const standing = { revision: 0, progress: {}, warnings: [], undoable: false, redoable: false };

const saved = new Map(); // id -> [action, label], as the server has it
const waiting = new Map(); // id -> decisions that are on their way, latest last
const listeners = new Map();

export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, []);
  listeners.get(event).push(listener);
}

export function tell(event, detail) {
  for (const listener of listeners.get(event) ?? []) listener(detail);
}

/** The page numbers the validation part after the training part. */
export const partOf = (id) => (id < project.counts.train ? "train" : "validation");

/** What holds about an instance: what was decided here counts before it is saved. */
export function decisionOf(id) {
  const decision = waiting.get(id)?.at(-1)?.decision ?? saved.get(id);
  return decision && decision[0] !== "undecided" ? decision : null;
}

export function expect(ids, decision, key) {
  for (const id of ids) waiting.set(id, [...(waiting.get(id) ?? []), { key, decision }]);
  tell("decisions", ids);
}

export function expectNoMore(ids, key) {
  for (const id of ids) {
    const rest = (waiting.get(id) ?? []).filter((entry) => entry.key !== key);
    if (rest.length) waiting.set(id, rest);
    else waiting.delete(id);
  }
  tell("decisions", ids);
}

/** An answer of the server: [[id, action, label], ...] and how far the review is. An older answer that comes late is left out. */
export function learn(answer) {
  if (answer.revision < standing.revision) return;
  for (const [id, action, label] of answer.decisions) saved.set(id, [action, label]);
  for (const name of Object.keys(standing)) standing[name] = answer[name];
  if (answer.decisions.length) tell("decisions", answer.decisions.map(([id]) => id));
  tell("standing");
}
