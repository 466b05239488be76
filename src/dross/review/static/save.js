// Decisions on their way to the disk: one after the other, tried again until the server has acknowledged them. One that the
// server refuses, or at which it breaks several times, is given up, and the person is told.
//
// What waits is also kept in the browser's storage, so that closing the page does not lose it. Each request has a name, and the
// server carries out a name only once: sending again after an answer was lost, or from two tabs, does no harm.

import { post } from "./api.js";
import { setting } from "./settings.js";
import { expect, expectNoMore, learn, standing, tell } from "./state.js";

const PAUSES = [500, 1000, 2000, 5000, 10000];
const MOST_BREAKS = 3; // of the server, at the same request
const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");

const ours = `dross.waiting.${document.querySelector('meta[name="dross-project"]').content}.`; // another project may have had this port
const store = ours + newKey(); // each tab its own
const queue = []; // { path, body, ids }
let sending = false;
let failures = 0;
let breaks = 0;
let trouble = null; // why the last attempt failed

function keep() {
  try {
    if (queue.length) localStorage.setItem(store, JSON.stringify(queue));
    else localStorage.removeItem(store);
  } catch {
    /* full or switched off: the queue is still in memory */
  }
}

export function decide(ids, action, label = null, why = "") {
  return send("/api/decide", { changes: [[action, label, ids]], why }, ids, [action, label]);
}

export const undo = () => send("/api/undo", {}, [], null);
export const redo = () => send("/api/redo", {}, [], null);
export const takePlan = () => send("/api/plan", {}, [], null);

/** How many requests are not on disk yet. */
export const waitingCount = () => queue.length;

function send(path, body, ids, decision) {
  const request = { path, body: { ...body, who: setting("who"), once: newKey() }, ids, decision };
  if (decision) expect(ids, decision, request.body.once);
  return new Promise((resolve) => {
    queue.push({ ...request, resolve });
    keep();
    tellState();
    work();
  });
}

async function work() {
  if (sending) return;
  sending = true;
  while (queue.length) {
    const request = queue[0];
    let answer = null;
    let refusal = null;
    try {
      answer = await post(request.path, { ...request.body, revision: standing.revision });
    } catch (error) {
      if (error.passing || (error.broken && ++breaks < MOST_BREAKS)) {
        trouble = error.message;
        tellState();
        await new Promise((resolve) => setTimeout(resolve, PAUSES[Math.min(failures++, PAUSES.length - 1)]));
        continue;
      }
      refusal = error;
    }
    failures = breaks = 0;
    trouble = null;
    finish(request);
    if (answer) learn(answer);
    else tell("problem", `This decision was not accepted: ${refusal.message}`);
    request.resolve?.(answer);
  }
  sending = false;
  tellState();
}

function tellState() {
  tell("saving", { state: !queue.length ? "saved" : trouble ? "failed" : "saving", count: queue.length, message: trouble });
}

function finish(request) {
  queue.shift();
  keep();
  expectNoMore(request.ids, request.body.once);
}

/** Not everything that is stored under this address need be ours: another program may have had the port. */
const isRequest = (stored) => typeof stored?.path === "string" && typeof stored.body?.once === "string" && Array.isArray(stored.ids);

/** What an earlier visit could not save. */
export function adoptLeftovers() {
  const found = [];
  try {
    for (const name of Object.keys(localStorage).filter((name) => name.startsWith(ours) && name !== store)) {
      found.push(...JSON.parse(localStorage.getItem(name)).filter(isRequest));
      localStorage.removeItem(name);
    }
  } catch {
    /* nothing readable */
  }
  for (const request of found) {
    if (request.decision) expect(request.ids, request.decision, request.body.once);
    queue.push(request);
  }
  if (found.length) {
    keep();
    work();
  }
}

addEventListener("beforeunload", (event) => {
  if (queue.length) event.preventDefault();
});
