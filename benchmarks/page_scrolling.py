"""Scroll the review page through a table of 100,000 rows in headless Chromium.

    python benchmarks/page_scrolling.py [--rows 100000] [--seconds 5]

Prints how long the list takes to appear, how regular the frames are while it scrolls, and what the
page's own script takes of each frame. Frames depend on whatever else the machine does; the script's
own time does so less. The rows are made up: nothing is trained.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import CDPSession, Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # projects as dross clean leaves them, of any size

from tests.review.conftest import CHROMIUM, CHROMIUM_OPTIONS  # noqa: E402
from tests.review.review_project import make_project  # noqa: E402

from dross.review.server import serve_in_thread  # noqa: E402

FRAME = 1000 / 60  # ms
SPEEDS = {"reading": 4, "wheel": 40, "flinging": 400}  # pixels per frame

# The time of every listener of a scroll event, and of every long task.
WATCH = """
localStorage.setItem("dross.tour", "seen");
window.own = [];
window.long = [];
const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (kind, listener, options) {
  const timed = kind !== "scroll" ? listener : (event) => {
    const start = performance.now();
    listener(event);
    own.push(performance.now() - start);
  };
  return add.call(this, kind, timed, options);
};
new PerformanceObserver((list) => long.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask" });
"""
SCROLL = """([step, milliseconds]) => new Promise((resolve) => {
  const list = document.getElementById("list");
  const times = [];
  own.length = long.length = 0;
  const frame = (now) => {
    times.push(now);
    if (list.scrollTop + list.clientHeight >= list.scrollHeight - 1) list.scrollTop = 0;
    else list.scrollTop += step;
    if (now - times[0] < milliseconds) requestAnimationFrame(frame);
    else resolve([times, own, long, document.querySelectorAll(".item").length]);
  };
  requestAnimationFrame(frame);
})"""
JUMP = """(share) => new Promise((resolve) => {
  const list = document.getElementById("list");
  const start = performance.now();
  list.scrollTop = share * list.scrollHeight;
  const filled = () => {
    const ready = document.querySelector(".item") && !document.querySelector(".item.loading");
    if (ready && performance.now() > start + 20) resolve(performance.now() - start);
    else setTimeout(filled, 5);
  };
  setTimeout(filled, 20);
})"""
IDLE = """(milliseconds) => new Promise((resolve) => {
  const times = [];
  const frame = (now) => {
    times.push(now);
    if (now - times[0] < milliseconds) requestAnimationFrame(frame);
    else resolve(times);
  };
  requestAnimationFrame(frame);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5)
    chosen = parser.parse_args()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{chosen.rows:,} rows, {cores} cores, load {load:.1f} when it began")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        project = make_project(Path(folder) / "p", "table", chosen.rows)
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_OPTIONS)
        print("Chromium", browser.version)
        with serve_in_thread(project) as server:
            page = browser.new_page(viewport={"width": 1300, "height": 800})
            page.add_init_script(WATCH)
            measure(page, server.address + "&tab=all", chosen.seconds)
        browser.close()
    print(f"load {os.getloadavg()[0]:.1f} when it ended")


def measure(page: Page, address: str, seconds: float) -> None:
    start = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".item:not(.loading)", timeout=120_000)
    print(f"first rows after {time.perf_counter() - start:.1f} s")
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    idle = np.diff(page.evaluate(IDLE, 1000 * seconds))
    print(f"idle, nothing scrolls: {describe_frames(idle)}")
    for name, step in SPEEDS.items():
        before = read_metrics(metrics)
        times, own, long, shown = page.evaluate(SCROLL, [step, 1000 * seconds])
        after = read_metrics(metrics)
        frames = np.diff(times)
        spent = {key: 1000 * (after[key] - before[key]) / len(frames) for key in before}
        print(f"{name}, {step} pixels a frame: {describe_frames(frames)}")
        print(
            f"    the page's scroll handler {np.median(own):.2f} ms (median), "
            f"{np.quantile(own, 0.99):.2f} ms (99 %), {max(own):.1f} ms (longest); "
            f"all scripts {spent['ScriptDuration']:.2f}, layout {spent['LayoutDuration']:.2f}, "
            f"styles {spent['RecalcStyleDuration']:.2f} ms a frame; "
            f"{len(long)} tasks over 50 ms; {shown} rows in the document"
        )
    jumps = [page.evaluate(JUMP, share) for share in np.linspace(0.05, 0.95, 10)]
    print(f"after a jump, rows are there in {np.median(jumps):.0f} ms, {max(jumps):.0f} at most")
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    print(f"JavaScript's heap {heap / 2**20:.0f} MiB")


def read_metrics(session: CDPSession) -> dict[str, float]:
    wanted = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
    found = session.send("Performance.getMetrics")["metrics"]
    return {entry["name"]: entry["value"] for entry in found if entry["name"] in wanted}


def describe_frames(lengths: np.ndarray) -> str:
    """lengths: milliseconds between frames."""
    missed = np.maximum(np.round(lengths / FRAME) - 1, 0).sum()
    return (
        f"{1000 / lengths.mean():.1f} frames a second, longest {lengths.max():.0f} ms, "
        f"{missed:.0f} of {missed + len(lengths):.0f} dropped"
    )


if __name__ == "__main__":
    main()
