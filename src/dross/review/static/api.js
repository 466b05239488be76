// The server. Every request carries the token; every failure is an Error with a sentence for a person.

const token = document.querySelector('meta[name="dross-token"]').content;

const LONGEST_WAIT = 60000; // the server itself waits half a minute for another program that writes
const PASSING = [0, 401, 503, 507]; // no answer, restarted, too busy, the disk is full

export class Refused extends Error {
  /** passing: the same may work later, however long that takes. broken: dross itself failed; the same may work at once, or never. */
  constructor(message, status) {
    super(message);
    this.status = status;
    this.passing = PASSING.includes(status);
    this.broken = status >= 500 && !this.passing;
  }
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, signal: AbortSignal.timeout(LONGEST_WAIT), credentials: "same-origin", headers: { "X-Dross-Token": token, "Content-Type": "application/json" } });
  } catch {
    throw new Refused("dross does not respond. Check that `dross review` is still running in the terminal.", 0);
  }
  const body = await answer.json().catch(() => null);
  if (answer.status === 401) throw new Refused("dross was restarted after this page was opened. Open the address that the terminal shows now.", 401);
  if (!answer.ok) throw new Refused(body?.error ?? `dross responded with an error (${answer.status}).`, answer.status);
  if (body === null) throw new Refused("The response from dross was incomplete.", 0);
  return body;
}

export const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(query)}`, { method: "GET" });
export const post = (path, body = {}) => ask(path, { method: "POST", body: JSON.stringify(body) });
export const thumbnail = (part, id) => `/image/${part}/${id}`; // a small copy
export const original = (part, id) => `/image/original/${part}/${id}`;
