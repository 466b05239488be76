// An image as large as one likes: to fit the window, in its own size, or any number of times that.

import { original, thumbnail } from "./api.js";
import { byId, data, h, say, show } from "./dom.js";

const LARGEST = 32; // times its own size
const SMOOTH_FROM = 128; // pixels of the longer side: smaller images are shown as the squares they are made of

const dialog = byId("zoom");
const stage = byId("zoom-stage");
let image = null;
let scale = null; // null: to fit

export function start() {
  for (const button of dialog.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => zoom(button.dataset.zoom));
  dialog.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const what = { "+": "in", "=": "in", "-": "out", 0: "fit", f: "fit", 1: "original", z: "close" }[event.key];
    if (!what) return;
    event.preventDefault();
    if (what === "close") dialog.close();
    else zoom(what);
  });
  dialog.addEventListener("close", () => show(stage)); // a large image is not kept in memory
  addEventListener("resize", () => dialog.open && draw());
}

/** entry: { part, id, source, label } of any part. The browser gives the focus back when the dialog closes. */
export function open(entry) {
  const words = `Image ${entry.source}, labeled ${entry.label}`;
  scale = null;
  byId("zoom-about").replaceChildren(data(words));
  byId("zoom-note").textContent = "Loading …";
  image = h("img", { alt: words });
  const now = image;
  image.addEventListener("load", () => now === image && loaded());
  image.addEventListener("error", () => {
    if (now !== image || image.dataset.small) return;
    image.dataset.small = "yes";
    image.src = thumbnail(entry.part, entry.id);
  });
  image.src = original(entry.part, entry.id);
  show(stage, image);
  if (!dialog.open) dialog.showModal();
  byId("zoom-title").focus();
}

function loaded() {
  image.classList.toggle("squares", Math.max(image.naturalWidth, image.naturalHeight) < SMOOTH_FROM);
  draw();
}

const fitting = () => Math.min((stage.clientWidth - 4) / image.naturalWidth, (stage.clientHeight - 4) / image.naturalHeight, LARGEST);

function zoom(what) {
  if (!image?.naturalWidth) return;
  const now = scale ?? fitting();
  if (what === "fit") scale = null;
  else if (what === "original") scale = 1;
  else scale = Math.min(LARGEST, Math.max(1 / LARGEST, now * (what === "in" ? 1.5 : 1 / 1.5)));
  draw();
  say(byId("zoom-note").textContent);
}

function draw() {
  if (!image?.naturalWidth) return;
  const times = scale ?? fitting();
  image.style.width = `${Math.max(1, image.naturalWidth * times)}px`;
  const pressed = { fit: scale === null, original: scale === 1 };
  for (const button of dialog.querySelectorAll("[aria-pressed]")) button.setAttribute("aria-pressed", String(pressed[button.dataset.zoom]));
  const size = `${image.naturalWidth} × ${image.naturalHeight} pixels, shown at ${Math.round(100 * times)} %.`;
  byId("zoom-note").textContent = image.dataset.small ? `${size} The original was moved or deleted; this is the small copy in the project.` : size;
}
