// The list: as long as the data, but only what is in sight is in the document.
//
// The server gives the ids in order, once; what they look like is fetched in pages when they come near. One item has tabindex 0
// (roving focus); it stays in the document even when it is scrolled out of sight, so that the focus is never lost.

import { get } from "./api.js";
import { byId, h, show } from "./dom.js";
import { SHAPES, buildItem, columnWidths, measureItems, tableHead, updateDecision } from "./items.js";
import { decisionOf, on, project, tell } from "./state.js";

const PAGE = 100;
const BEYOND = 500; // pixels kept ready above and below
const MOST_ITEMS = 6000; // kept in memory
const TOO_FAST = 250; // pixels a frame: nobody can read it, and rows are filled in when the list slows down
const FLUNG = 3; // such frames in a row; a single one is a jump

const FEWEST_ROWS = 4; // in sight; below that a passage has fewer lines

const scroller = byId("list");
const holder = byId("items");
const items = new Map(); // id -> what it looks like
const shown = new Map(); // place -> element
const asked = new Set(); // pages under way
let awaited = null; // what is done with the selected one when it is known
let ids = [];
let places = new Map(); // id -> place
let selected = -1;
let generation = 0;
let fastFrames = 0;
let lastTop = 0;
let resting;
let measured = ""; // the size at which the rows were measured
let canvas, shape, rowHeight, across, narrow;
let headHeight = 0;

export const selectedId = () => ids[selected] ?? null;
export const selectedPlace = () => selected;
export const length = () => ids.length;
export const itemOf = (id) => items.get(id);
export const placeOf = (id) => places.get(id) ?? -1;
export const idAt = (place) => ids[place] ?? null;

/** Calls then(the selected item), at once or when its page has come; not if another one is selected by then. */
export function withSelected(then) {
  const id = selectedId();
  awaited = () => {
    if (!items.has(id)) return;
    awaited = null;
    if (selectedId() === id) then(items.get(id));
  };
  awaited();
}

/** Another list. keepPlace: stay near where we are when the selected one is gone. */
export function setIds(next, wanted, keepPlace = false) {
  const before = Math.max(0, selected);
  generation++;
  asked.clear();
  ids = next;
  places = new Map(ids.map((id, place) => [id, place]));
  if (!shape) prepare();
  for (const element of shown.values()) element.remove();
  shown.clear();
  if (shape.role === "grid") holder.setAttribute("aria-rowcount", ids.length + 1);
  measure();
  if (!keepPlace) scroller.scrollTop = 0;
  selected = -1;
  const place = places.get(wanted) ?? (keepPlace ? Math.min(before, ids.length - 1) : ids.length ? 0 : -1);
  if (ids.length) select(place, { focus: false });
  else tell("selected", null);
  if (!ids.length) show(canvas, h("p", { class: "empty" }, "This list is empty. Change the filter, or open another list."));
  else canvas.querySelector(".empty")?.remove();
}

export function select(place, { focus = true } = {}) {
  if (place < 0 || place >= ids.length) return;
  const before = shown.get(selected);
  if (before) choose(before, false);
  selected = place;
  into(place);
  draw();
  const element = shown.get(place);
  choose(element, true);
  if (focus) element.focus({ preventScroll: true });
  tell("selected", ids[place]);
}

/** Arrow keys: sideways one, up and down one row. */
export function move(rows, columns = 0) {
  const next = selected + rows * across + columns;
  if (next >= 0 && next < ids.length) return select(next);
  if (rows > 0 && Math.floor(selected / across) < Math.floor((ids.length - 1) / across)) select(ids.length - 1);
}

export const movePage = (direction) => select(Math.min(ids.length - 1, Math.max(0, selected + direction * across * Math.max(1, visibleRows() - 1))));
export const focusSelected = () => (shown.get(selected) ?? scroller).focus({ preventScroll: true });

function prepare() {
  shape = SHAPES[project.layout];
  canvas = h("div", { class: `canvas ${project.layout}` });
  if (shape.role === "grid") {
    holder.setAttribute("role", "grid");
    holder.setAttribute("aria-label", "Instances");
    canvas.setAttribute("role", "rowgroup");
    holder.append(h("div", { role: "rowgroup", class: "head-group" }, tableHead()), canvas);
  } else {
    canvas.setAttribute("role", "listbox");
    canvas.setAttribute("aria-label", "Instances");
    holder.append(canvas);
  }
  scroller.addEventListener("scroll", scrolled, { passive: true }); // browsers send it once per frame
  new ResizeObserver(() => {
    const top = Math.floor(scroller.scrollTop / rowHeight) * across;
    measure();
    scroller.scrollTop = Math.floor(top / across) * rowHeight;
    for (const [place, element] of shown) put(element, place);
    draw();
  }).observe(scroller);
  canvas.addEventListener("click", (event) => {
    const element = event.target.closest("[data-place]");
    if (element) select(Number(element.dataset.place));
  });
  canvas.addEventListener("dblclick", () => tell("open-why"));
  on("decisions", (changed) => {
    const touched = new Set(changed);
    for (const [place, element] of shown) if (touched.has(ids[place])) updateDecision(element, ids[place], items.get(ids[place]));
  });
}

function measure() {
  const size = `${scroller.clientWidth} ${scroller.clientHeight} ${getComputedStyle(document.documentElement).fontSize}`;
  if (size !== measured) {
    measured = size;
    fit();
  }
  canvas.style.height = `${Math.ceil(ids.length / across) * rowHeight}px`;
}

/** The shape of the rows at this width. */
function fit() {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const width = scroller.clientWidth / rem;
  narrow = width < 45;
  holder.classList.toggle("narrow", narrow);
  across = shape.across(width, narrow);
  canvas.style.minWidth = "";
  canvas.classList.remove("dense");
  rowHeight = Math.ceil(measureItems(canvas, across, rem));
  if (!narrow && FEWEST_ROWS * rowHeight > scroller.clientHeight) {
    canvas.classList.add("dense");
    rowHeight = Math.ceil(measureItems(canvas, across, rem));
  }
  canvas.style.setProperty("--row", `${rowHeight}px`);
  if (shape.role !== "grid") return;
  const widths = columnWidths();
  if (!narrow) canvas.style.minWidth = `calc(${widths.join(" + ")})`;
  const head = holder.querySelector(".head-group");
  head.firstElementChild.style.gridTemplateColumns = widths.join(" ");
  headHeight = head.offsetHeight;
}

const visibleRows = () => Math.ceil((scroller.clientHeight - headHeight) / rowHeight);

function scrolled() {
  fastFrames = Math.abs(scroller.scrollTop - lastTop) > TOO_FAST ? fastFrames + 1 : 0;
  lastTop = scroller.scrollTop;
  clearTimeout(resting);
  if (fastFrames) resting = setTimeout(scrolled, 60); // by then it has slowed down, or this is moved on
  draw();
}

function draw() {
  const top = Math.floor(scroller.scrollTop / rowHeight);
  const beyond = Math.ceil(BEYOND / rowHeight);
  const first = Math.max(0, (top - beyond) * across);
  const last = Math.min(ids.length, (top + visibleRows() + 1 + beyond) * across);
  for (const [place, element] of shown) {
    if ((place < first || place >= last) && place !== selected) {
      element.remove();
      shown.delete(place);
    }
  }
  for (let place = first; place < last; place++) ensure(place);
  if (selected >= 0 && selected < ids.length) ensure(selected);
  if (fastFrames >= FLUNG) return;
  for (const [place, element] of shown) if (element.classList.contains("loading") && items.has(ids[place])) dress(element, place);
  fetchPages(first, last);
}

function ensure(place) {
  if (shown.has(place)) return;
  const role = shape.role === "grid" ? "row" : "option";
  const element = h("div", { class: "item", role, tabindex: place === selected ? 0 : -1, "aria-selected": String(place === selected), "data-place": place, "data-id": ids[place] });
  if (role === "row") element.setAttribute("aria-rowindex", place + 2);
  else {
    element.setAttribute("aria-posinset", place + 1);
    element.setAttribute("aria-setsize", ids.length);
  }
  put(element, place);
  dress(element, place);
  shown.set(place, element);
  const after = [...shown.keys()].filter((other) => other > place); // document order is reading order
  canvas.insertBefore(element, after.length ? shown.get(Math.min(...after)) : null);
}

function put(element, place) {
  const column = place % across;
  element.style.transform = `translateY(${Math.floor(place / across) * rowHeight}px)`;
  element.style.left = `${(100 * column) / across}%`;
  element.style.width = `${100 / across}%`;
  if (shape.role === "grid") element.style.gridTemplateColumns = narrow ? "" : columnWidths().join(" ");
}

function dress(element, place) {
  const item = fastFrames >= FLUNG ? null : items.get(ids[place]);
  element.classList.toggle("loading", !item);
  element.dataset.decision = (decisionOf(ids[place]) ?? ["undecided"])[0];
  if (!item) return show(element, shape.role === "grid" ? h("span", { role: "gridcell" }, "Loading …") : h("span", {}, "Loading …"));
  show(element, buildItem(item));
  updateDecision(element, item.id, item);
}

function choose(element, yes) {
  element.tabIndex = yes ? 0 : -1;
  element.setAttribute("aria-selected", String(yes));
}

/** Scroll just far enough. */
function into(place) {
  const top = Math.floor(place / across) * rowHeight;
  const bottom = top + rowHeight + headHeight;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (bottom > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = bottom - scroller.clientHeight;
}

/** What is in sight, and the page after it. */
function fetchPages(first, last) {
  const end = Math.min(Math.floor(Math.max(0, last - 1) / PAGE) + 1, Math.floor((ids.length - 1) / PAGE));
  for (let page = Math.floor(first / PAGE); page <= end; page++) fetchPage(page);
  if (selected >= 0) fetchPage(Math.floor(selected / PAGE));
}

async function fetchPage(page) {
  if (asked.has(page)) return;
  const missing = ids.slice(page * PAGE, (page + 1) * PAGE).filter((id) => !items.has(id));
  if (!missing.length) return;
  asked.add(page);
  const now = generation;
  try {
    const answer = await get("/api/items", { ids: missing.join(",") });
    for (const item of answer.items) items.set(item.id, item);
    awaited?.();
    if (now !== generation) return;
    for (const [place, element] of shown) if (element.classList.contains("loading")) dress(element, place);
    forget();
  } catch (error) {
    tell("problem", error.message);
    if (!error.passing) return; // and is not asked again until there is another list
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
  if (now === generation) {
    asked.delete(page);
    if ([...shown.values()].some((element) => element.classList.contains("loading"))) draw();
  }
}

function forget() {
  const near = new Set([...shown.keys()].map((place) => ids[place]));
  for (const id of items.keys()) {
    if (items.size <= MOST_ITEMS) return;
    if (!near.has(id)) items.delete(id);
  }
}
