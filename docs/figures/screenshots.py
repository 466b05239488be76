"""Make the screenshots of the docs: the review page and the report of the demo.

    python -m docs.figures.screenshots [--project FOLDER]

Without a project, `dross demo` makes one first (a minute or two). Needs playwright and Chromium, as
the tests of the page do.
"""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from tests.review.review_client import serve_in_thread

from dross.cleaning.project import Project
from dross.cleaning.report import write_report
from dross.demo import run_demo

FIGURES = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
MOST_BYTES = 300_000
NO_TOUR = "try { localStorage.setItem('dross.tour', 'seen') } catch {}"


def main() -> None:
    """Make a project where none is given, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, help="a project that dross demo made")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = chosen.project or run_demo(Path(folder) / "demo").project.folder
        take_pictures(Project.open(project))


def take_pictures(project: Project) -> None:
    """Write review.png and report.png beside this script."""
    report = write_report(project)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.add_init_script(NO_TOUR)
        with serve_in_thread(project) as server:
            page.goto(server.address)
            page.wait_for_selector("body[data-ready]")
            page.wait_for_selector("#why-body .reasons")
            page.wait_for_load_state("networkidle")
            save(page, "review.png")
        page.set_viewport_size({"width": 1000, "height": 1100})
        page.goto(report.resolve().as_uri())
        save(page, "report.png")
        browser.close()


def save(page: Page, name: str) -> None:
    """Save what is in sight; a picture that is too large for the repository is refused."""
    path = FIGURES / name
    page.screenshot(path=path)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{path} has {size:,} bytes, more than {MOST_BYTES:,}.")
    print(f"{path}: {size:,} bytes")


if __name__ == "__main__":
    main()
