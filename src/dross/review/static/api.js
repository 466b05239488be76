// The server. Every request carries the token; every failure is an Error with a sentence for a person.

const token = document.querySelector('meta[name="dross-token"]').content;

export class Refused extends Error {
  /** passing: trying the same again later may work. */
  constructor(message, status) {
    super(message);
    this.status = status;
    this.passing = status === 0 || status >= 500 || status === 401;
  }
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, credentials: "same-origin", headers: { "X-Dross-Token": token, "Content-Type": "application/json" } });
  } catch {
    throw new Refused("dross does not answer. Is `dross review` still running in the terminal?", 0);
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) throw new Refused("dross was started anew since this page was opened. Open the address that the terminal shows now.", 401);
  if (!answer.ok) throw new Refused(body.error ?? `dross answered with an error (${answer.status}).`, answer.status);
  return body;
}

export const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(query)}`, { method: "GET" });
export const post = (path, body = {}) => ask(path, { method: "POST", body: JSON.stringify(body) });
export const picture = (part, id) => `/picture/${part}/${id}`;
