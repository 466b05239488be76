// The address holds the tab, the filter and the selected instance, so that reloading, going back and sharing work.

export const FILTERS = ["q", "class", "origin", "prediction", "state", "min", "max"];

export function read() {
  const query = new URLSearchParams(location.search);
  const filter = { tab: query.get("tab") || document.querySelector("meta[name=dross-tab]").content };
  for (const name of FILTERS) if (query.get(name)) filter[name] = query.get(name);
  const item = query.get("item");
  return { filter, item: item === null || !/^\d+$/.test(item) ? null : Number(item) };
}

function text(filter, item) {
  const query = new URLSearchParams(filter);
  if (item !== null && item !== undefined) query.set("item", item);
  return `/?${query}`;
}

let later;

/** Another list: one step back in the browser leads to the previous one. */
export function visit(filter) {
  clearTimeout(later);
  history.pushState(null, "", text(filter, null));
}

/** The selection moves quickly and browsers limit how often an address may change, so it is written when it rests. */
export function remember(filter, item) {
  clearTimeout(later);
  later = setTimeout(() => history.replaceState(null, "", text(filter, item)), 250);
}

/** The token came in the address; it does not stay there. */
export function hideToken() {
  const { filter, item } = read();
  history.replaceState(null, "", text(filter, item));
}
