// What other tabs and people decide, about every second and a half.

import { get } from "./api.js";
import { setting } from "./settings.js";
import { learn, on, standing, tell } from "./state.js";

const PAUSE = 1500;
let timer;

export function start() {
  on("poll-soon", () => schedule(300));
  document.addEventListener("visibilitychange", () => schedule(document.hidden ? 10 * PAUSE : 0));
  schedule(PAUSE);
}

function schedule(pause) {
  clearTimeout(timer);
  timer = setTimeout(poll, pause);
}

async function poll() {
  try {
    const answer = await get("/api/since", { revision: standing.revision, who: setting("who") });
    learn(answer);
    tell("judge", answer.judge);
    tell("connection", null);
  } catch (error) {
    tell("connection", error.message);
  }
  schedule(document.hidden ? 10 * PAUSE : PAUSE);
}
