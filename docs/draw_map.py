"""Draw docs/figures/architecture.svg from the real imports, so that the map cannot lie.

    python docs/draw_map.py            write the map
    python docs/draw_map.py --check    fail if the map is not that of the code, or imports go round

Each box is a folder of src/dross with the number of its modules and the first line of what it says
about itself. An arrow means that modules of the upper folder import modules of the lower one;
arrows that follow from two others are left out. Lazy and type-only imports count.
"""

import argparse
import ast
import html
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "figures" / "architecture.svg"
ON_TOP = {"__init__", "__main__", "_version", "errors"}  # no folders; everything may use them
WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP = 1000, 300, 58, 34
COLOURS = {
    "people": "#f3e3cf",
    "questions": "#dfe9f3",
    "mathematics": "#e2efdf",
    "tools": "#eeeeee",
}
KINDS = {
    "cli": "people",
    "demo": "people",
    "review": "people",
    "integrations": "people",
    "cleanse": "people",
    "reproduce": "people",
    "estimators": "questions",
    "influence": "questions",
    "record": "questions",
    "replay": "questions",
    "tape": "questions",
    "step": "mathematics",
    "autodiff": "mathematics",
}


def read_graph() -> grimp.ImportGraph:
    """Who imports whom, lazily and for types as well."""
    sys.path.insert(0, str(ROOT / "src"))
    return grimp.build_graph("dross", cache_dir=None)


def folder_of(module: str) -> str:
    """The folder below src/dross that a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def folder_imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Which folders each folder imports from."""
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules):
        folder = folder_of(module)
        if folder in ON_TOP:
            continue
        found.setdefault(folder, set())
        for other in graph.find_modules_directly_imported_by(module):
            target = folder_of(other)
            if target not in ON_TOP and target != folder:
                found[folder].add(target)
    return found


def find_cycle(imports: dict[str, set[str]]) -> list[str] | None:
    """A way from a node back to itself, if there is one."""
    state: dict[str, int] = {}

    def visit(node: str, path: list[str]) -> list[str] | None:
        state[node] = 1
        for other in sorted(imports.get(node, ())):
            if state.get(other) == 1:
                return [*path[path.index(other) :], other] if other in path else [node, other]
            if other not in state and (found := visit(other, [*path, other])):
                return found
        state[node] = 2
        return None

    for node in sorted(imports):
        if node not in state and (found := visit(node, [node])):
            return found
    return None


def module_imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Which modules each module imports; a package's own file counts as a module."""
    return {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


def reduce_edges(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that follow from two others."""
    reached: dict[str, set[str]] = {}

    def reach(node: str) -> set[str]:
        if node not in reached:
            reached[node] = set().union(*({o} | reach(o) for o in imports[node]), set())
        return reached[node]

    return {
        node: {o for o in others if not any(o in reach(p) for p in others if p != o)}
        for node, others in imports.items()
    }


def rank_folders(imports: dict[str, set[str]]) -> dict[str, int]:
    """How many folders are below each one, on the longest way down."""
    ranks: dict[str, int] = {}

    def rank(node: str) -> int:
        if node not in ranks:
            ranks[node] = 1 + max((rank(other) for other in imports[node]), default=-1)
        return ranks[node]

    for node in imports:
        rank(node)
    return ranks


def describe_folder(folder: str) -> tuple[int, str]:
    """The number of its modules, and the first sentence of what it says about itself."""
    path = ROOT / "src" / "dross" / folder
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    count = len([p for p in path.rglob("*.py") if p.name != "__init__.py"]) if path.is_dir() else 1
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    return count, text


def wrap(text: str, width: int = 47) -> list[str]:
    """At most two lines."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    lines.append(line)
    return lines[:2] if len(lines) <= 2 else [lines[0], lines[1].rstrip(".,:;") + " ..."]


def draw(imports: dict[str, set[str]]) -> str:
    """The map as SVG."""
    ranks, edges = rank_folders(imports), reduce_edges(imports)
    top = max(ranks.values())
    rows = {r: sorted(name for name, own in ranks.items() if own == r) for r in range(top + 1)}
    place: dict[str, tuple[float, float]] = {}
    for r, names in rows.items():
        step = WIDTH / len(names)
        for k, name in enumerate(names):
            # rows alternate a little, so that arrows over several rows can be seen
            shift = 0 if len(names) > 1 else (-150, 0, 150, 0)[r % 4]
            place[name] = ((k + 0.5) * step + shift, 20 + (top - r) * (BOX_HEIGHT + GAP))
    height = 40 + (top + 1) * (BOX_HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#666"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for name, others in sorted(edges.items()):
        x, y = place[name]
        for other in sorted(others):
            to_x, to_y = place[other]
            start, middle = y + BOX_HEIGHT, (y + BOX_HEIGHT + to_y) / 2
            parts.append(
                f'<path d="M{x:.0f} {start:.0f} C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} '
                f'{to_x:.0f} {to_y - 2:.0f}" fill="none" stroke="#666" marker-end="url(#head)"/>'
            )
    parts += [draw_box(name, *place[name]) for name in sorted(place)]
    return "\n".join([*parts, "</svg>", ""])


def draw_box(name: str, x: float, y: float) -> str:
    """A folder: its name, its size, what it is about."""
    count, text = describe_folder(name)
    left, fill = x - BOX_WIDTH / 2, COLOURS[KINDS.get(name, "tools")]
    lines = [
        f'<rect x="{left:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="#999"/>',
        f'<text x="{left + 10:.0f}" y="{y + 18:.0f}"><tspan font-weight="bold" font-size="13">'
        f'{name}</tspan> <tspan fill="#666">{count} module{"s" * (count > 1)}</tspan></text>',
    ]
    for k, line in enumerate(wrap(text)):
        lines.append(
            f'<text x="{left + 10:.0f}" y="{y + 34 + 14 * k:.0f}">{html.escape(line)}</text>'
        )
    return "\n".join(lines)


def main() -> None:
    """Write or check the map."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    graph = read_graph()
    if cycle := find_cycle(module_imports(graph)):
        sys.exit(f"Imports go round: {' -> '.join(cycle)}.")
    text = draw(folder_imports(graph))
    if not check:
        MAP.write_text(text, encoding="utf-8")
    elif not MAP.exists() or MAP.read_text(encoding="utf-8") != text:
        sys.exit(f"{MAP.relative_to(ROOT)} is not the map of this code: python docs/draw_map.py")


if __name__ == "__main__":
    main()
