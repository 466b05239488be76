"""Look at the built site in Chromium, as `make docs-check` does.

    python docs/tools/check_site.py build/site [--pictures FOLDER]

For every page, light and dark, as wide as a phone and as a desktop: axe-core finds nothing serious,
nothing is wider than the window, nothing is asked of another machine, no script fails, every
picture has a text, and there is one heading of the first kind. Sizes and times are printed.
"""

import argparse
import functools
import http.server
import shutil
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
AXE = Path(sys.prefix) / "axe-core" / "package" / "axe.min.js"
WIDTHS = {"desktop": 1280, "phone": 390}
SCHEMES = ("light", "dark")
SERIOUS = ("serious", "critical")
FACTS = """() => ({
    wide: document.documentElement.scrollWidth - window.innerWidth,
    headings: document.querySelectorAll("h1").length,
    silent: [...document.images].filter(image => !image.alt).length,
    title: document.title,
    language: document.documentElement.lang,
    described: !!document.querySelector("meta[name=description]"),
})"""


@dataclass
class Findings:
    """What is wrong, and what was measured."""

    wrong: list[str] = field(default_factory=list)
    bytes_of: dict[str, int] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def serve(folder: Path) -> http.server.ThreadingHTTPServer:
    """Serve a folder on a free port of this machine."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def list_pages(folder: Path) -> list[str]:
    """Return the addresses of all pages, relative to the site's."""
    found = sorted(folder.rglob("index.html"), key=lambda path: (len(path.parts), str(path)))
    return [path.parent.relative_to(folder).as_posix() for path in found]


def check(folder: Path, pages: list[str], pictures: Path | None) -> Findings:
    """Visit the pages in each scheme and width."""
    from playwright.sync_api import sync_playwright

    findings = Findings()
    server = serve(folder)
    address = f"http://127.0.0.1:{server.server_port}/"
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for scheme in SCHEMES:
            for device, width in WIDTHS.items():
                size = {"width": width, "height": 844 if device == "phone" else 900}
                context = browser.new_context(viewport=size, color_scheme=scheme)
                for name in pages:
                    say = f"\r\033[K{scheme}, {device}: {name}"
                    print(say, end="", file=sys.stderr, flush=True)
                    visit(context, address, name, f"{scheme} {device}", findings, pictures)
                context.close()
        print("\r\033[K", end="", file=sys.stderr)
        browser.close()
    server.shutdown()
    return findings


def visit(context, address: str, name: str, how: str, findings: Findings, pictures) -> None:
    """Open one page and note what is wrong with it."""
    page = context.new_page()
    say = lambda text: findings.wrong.append(f"{name} ({how}): {text}")
    page.on("pageerror", lambda error: say(f"a script failed: {error}"))

    def note(response) -> None:
        if not response.url.startswith((address, "data:", "blob:")):
            findings.foreign.add(response.url)
        elif response.status >= 400:
            say(f"{response.url} is missing")

    page.on("response", note)
    started = time.monotonic()
    page.goto(address + name + "/", wait_until="load")
    findings.milliseconds.append(1000 * (time.monotonic() - started))
    facts = page.evaluate(FACTS)
    if facts["wide"] > 0:
        say(f"{facts['wide']} pixels too wide")
    if facts["headings"] != 1 or not facts["title"] or facts["language"] != "en":
        say(f"{facts['headings']} headings h1, title '{facts['title']}'")
    if facts["silent"]:
        say(f"{facts['silent']} pictures without a text")
    if pictures is not None:
        file = (
            pictures / f"{name.replace('/', '-').strip('.') or 'home'}-{how.replace(' ', '-')}.png"
        )
        page.screenshot(path=file)
    if AXE.exists():
        page.add_script_tag(path=AXE)
        options = "{resultTypes: ['violations']}"
        for found in page.evaluate(f"axe.run(document, {options})")["violations"]:
            if found["impact"] in SERIOUS:
                where = found["nodes"][0]["html"][:120]
                say(f"axe: {found['id']} ({len(found['nodes'])} places, such as {where})")
    page.close()


def main() -> None:
    """Check a site; end with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    parser.add_argument("--only", nargs="*", help="addresses of pages; default: all")
    options = parser.parse_args()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    pages = options.only or list_pages(options.site)
    findings = check(options.site, pages, options.pictures)
    sizes = {path: path.stat().st_size for path in options.site.rglob("*") if path.is_file()}
    html = [size for path, size in sizes.items() if path.suffix == ".html"]
    print(f"{len(pages)} pages, {len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB")
    print(f"HTML: median {statistics.median(html) / 1e3:.0f} KB, largest {max(html) / 1e3:.0f} KB")
    times = findings.milliseconds
    print(f"loading: median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms")
    print(f"axe: {'ran' if AXE.exists() else 'not here: make browser fetches it where npm is'}")
    print(f"requests to other machines: {len(findings.foreign)}")
    wrong = findings.wrong + [f"asks {url}" for url in sorted(findings.foreign)]
    print("\n".join(wrong) or "Nothing is wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
