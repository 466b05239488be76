// What one person likes, kept in this browser.

const defaults = { keys: "on", moveOn: "on", who: "", why: "", plan: "", tour: "" };

export function setting(name) {
  try {
    return localStorage.getItem(`dross.${name}`) ?? defaults[name];
  } catch {
    return defaults[name]; // storage is switched off
  }
}

export function set(name, value) {
  try {
    localStorage.setItem(`dross.${name}`, value);
  } catch {
    /* it holds for this visit only */
  }
}
