"""The report of the cleansing experiment: figures, tables, and one HTML file with all of it."""

from pathlib import Path
from typing import Any

import numpy as np

from .. import _figures as charts
from .._figures import encode_data_url
from .._io import write_table, write_text
from .._text import render, safe
from ..datasets import load
from ..errors import InvalidInput
from .cleansing import PICTURES_PER_METHOD, summarize
from .cleansing_settings import METHODS, RETRAIN_WAYS, Settings, split_positions

NAMES = {
    "retrace": "retrace, all epochs",
    "last-epoch": "retrace, last epoch",
    "no-hessian": "no Hessian term",
    "k&l": "K&L",
    "autoencoder": "autoencoder",
    "isolation-forest": "isolation forest",
    "loss": "training loss",
    "random": "random",
}
WAYS = {
    "last": (
        "Retrain Last",
        "The recorded run up to its last epoch, then the last epoch without the removed instances.",
    ),
    "all": (
        "Retrain All",
        "The recorded run from its start without the removed instances: same initial weights, "
        "same order.",
    ),
    "fresh": (
        "Retrain Fresh",
        "A new run with new seeds, with and without the removed instances: what a user would do "
        "next.",
    ),
}
_COLOURS = {
    "retrace": charts.BLUE,
    "last-epoch": "#5b9bd5",
    "k&l": charts.ORANGE,
    "random": charts.GREY,
}


def write_report(folder: Path, results: list[dict], settings: Settings, command: str) -> list[Path]:
    """Write tables, figures and the page of these results into the folder they are kept in.

    Returns the paths of what was written, the page last.
    """
    name = settings.data
    rows = [row | {"draw": result["draw"]} for result in results for row in result["rows"]]
    table = summarize(rows)
    paths = [
        write_table(folder / f"{name}-rows.csv", rows),
        write_table(folder / f"{name}-summary.csv", table),
    ]
    paths.append(folder / f"{name}-summary.md")
    write_text(paths[-1], as_markdown(table))
    ways = []
    for way in [way for way in RETRAIN_WAYS if any(row["retrain"] == way for row in table)]:
        summary = [row for row in table if row["retrain"] == way]
        m = _typical_count(summary)
        figures = {
            "curves": curves(summary),
            "before-after": before_after([row for row in rows if row["retrain"] == way], m),
        }
        for kind, svg in figures.items():
            paths.append(charts.save_svg(svg, folder / f"{name}-{way}-{kind}.svg"))
        ways.append(_describe_way(way, summary, m, figures))
    sheets, sheet_draw = _collect_sheets(results, settings)
    if sheets:
        paths.append(charts.save_svg(contact_sheet(sheets), folder / f"{name}-contact-sheet.svg"))
    page = folder / f"{name}.html"
    names, agreement = _average_agreement(results)
    content = render(
        "cleansing.html",
        data=name,
        draws=len(results),
        settings=settings,
        findings=findings(table),
        ways=ways,
        sheets=sheets,
        sheet_draw=sheet_draw,
        shown=PICTURES_PER_METHOD,
        agreement=agreement,
        agreement_names=names,
        command=command,
        versions="; ".join(dict.fromkeys(result["made_on"] for result in results)),
    )
    write_text(page, content)
    return [*paths, page]


def _typical_count(table: list[dict]) -> int:
    """100 if that many were removed, otherwise the middle of the grid."""
    sizes = sorted({row["m"] for row in table})
    return 100 if 100 in sizes else sizes[len(sizes) // 2]


def findings(table: list[dict]) -> list[str]:
    """What came out, in sentences that the numbers bear out."""
    sentences = []
    for way in dict.fromkeys(row["retrain"] for row in table):
        summary = [row for row in table if row["retrain"] == way]
        better: dict[str, list[str]] = {row["method"]: [] for row in summary}
        for row in summary:
            if _is_significant(row) and row["error"] < row["error_kept"]:
                better[row["method"]].append(f"{row['m']:,}")
        found = [f"{NAMES[method]} (m = {', '.join(m)})" for method, m in better.items() if m]
        draws = summary[0]["draws"]
        if draws < 3:
            finding = f"{draws} draw{'s' if draws > 1 else ''} can show a direction, not prove it."
        elif found:
            finding = (
                f"the test error fell significantly (paired t-test over {draws} draws, p < 0.05) "
                f"with {'; '.join(found)}."
            )
        else:
            finding = (
                "no method lowered the test error significantly (paired t-test over "
                f"{draws} draws)."
            )
        sentences.append(f"{WAYS[way][0]}: {finding}")
    return sentences


def _is_significant(row: dict) -> bool:
    return row["p"] < 0.05


def as_markdown(table: list[dict]) -> str:
    """The summary as a table, one line per way, method and m."""
    lines = [
        "| retrain | method | m | draws | error | error, nothing removed | p | improved |",
        "| --- " * 8 + "|",
    ]
    for row in table:
        p = "" if np.isnan(row["p"]) else f"{row['p']:.3f}"
        cells = [row["retrain"], row["method"], row["m"], row["draws"], f"{row['error']:.3%}"]
        cells += [f"{row['error_kept']:.3%}", p, f"{row['improved']}/{row['draws']}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


# --- figures ---


@charts.house_style()
def curves(table: list[dict]) -> str:
    """Error against m, one panel per method, each with the models that kept everything."""
    methods = _present_methods(table)
    figure, panels = _shared_panels(len(methods), height=1.9)
    for panel, method in zip(panels, methods):
        rows = sorted((row for row in table if row["method"] == method), key=lambda row: row["m"])
        m = np.array([row["m"] for row in rows])
        error, spread, kept, kept_spread = (
            100 * np.array([row[key] for row in rows])
            for key in ("error", "error_std", "error_kept", "error_kept_std")
        )
        colour = _COLOURS.get(method, charts.GREEN)
        panel.fill_between(m, kept - kept_spread, kept + kept_spread, color="0.92", linewidth=0)
        panel.plot(m, kept, color="0.55", linewidth=0.8)
        shade = {"color": colour, "alpha": 0.18, "linewidth": 0}
        panel.fill_between(m, error - spread, error + spread, **shade)
        panel.plot(m, error, color=colour, linewidth=1.2)
        sure = np.array([_is_significant(row) for row in rows])
        panel.scatter(m[sure], error[sure], s=12, color=colour, zorder=3)
        hollow = {"facecolors": "white", "edgecolors": colour, "linewidths": 0.8}
        panel.scatter(m[~sure], error[~sure], s=12, zorder=3, **hollow)
        panel.set(xscale="log", title=NAMES[method])
    figure.supxlabel("removed instances m", fontsize=8)
    figure.supylabel("test error, %", fontsize=8)
    return charts.as_svg(figure)


@charts.house_style()
def before_after(rows: list[dict], m: int) -> str:
    """One dot per draw: the error with everything kept, and without the m most harmful."""
    methods = _present_methods(rows)
    figure, panels = _shared_panels(len(methods), height=2.0)
    for panel, method in zip(panels, methods):
        chosen = [row for row in rows if row["method"] == method and row["m"] == m]
        kept, error = (
            100 * np.array([row[key] for row in chosen]) for key in ("error_kept", "error")
        )
        low, high = min(kept.min(), error.min()), max(kept.max(), error.max())
        panel.plot([low, high], [low, high], color="0.7", linewidth=0.7, zorder=0)
        colour = _COLOURS.get(method, charts.GREEN)
        panel.scatter(kept, error, s=11, color=colour, alpha=0.85, linewidths=0)
        panel.set_title(f"{NAMES[method]}\n{int((error < kept).sum())} of {len(chosen)} better")
    figure.supxlabel("test error with everything kept, %", fontsize=8)
    figure.supylabel(f"with {m} removed, %", fontsize=8)
    return charts.as_svg(figure)


def _present_methods(rows: list[dict]) -> list[str]:
    return [name for name in METHODS if any(row["method"] == name for row in rows)]


def _shared_panels(count: int, height: float):
    return charts.panels(count, min(4, count), height=height, sharex=True, sharey=True)


@charts.house_style()
def contact_sheet(sheets: list[dict]) -> str:
    """The most harmful of each method, a row each, labels above."""
    figure, _ = charts.panels(1, 1, width=7.6, height=0.52 * len(sheets) + 0.1)
    grid = figure.subplots(len(sheets), PICTURES_PER_METHOD, squeeze=False)
    figure.axes[0].set_visible(False)
    for line, sheet in zip(grid, sheets):
        for cell in line:
            cell.axis("off")
        for cell, picture in zip(line, sheet["pictures"]):
            cell.imshow(picture["pixels"], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            cell.set_title(picture["label"][:6], fontsize=5, pad=1.5)
        place = {"transform": line[0].transAxes, "ha": "right", "va": "center"}
        line[0].text(-0.25, 0.5, sheet["method"], fontsize=6, **place)
    return charts.as_svg(figure)


# --- parts of the page ---


def _describe_way(way: str, table: list[dict], m: int, figures: dict[str, str]) -> dict[str, Any]:
    """What the page says about one way to train again."""
    sizes = sorted({row["m"] for row in table})
    by_place = {(row["method"], row["m"]): row for row in table}
    lines = [
        {"method": NAMES[method], "cells": [_cell(by_place.get((method, size))) for size in sizes]}
        for method in _present_methods(table)
    ]
    kept = float(np.mean([row["error_kept"] for row in table]))
    return {
        "title": WAYS[way][0],
        "meaning": WAYS[way][1],
        "curves": safe(figures["curves"]),
        "scatter": safe(figures["before-after"]),
        "at": m,
        "sizes": sizes,
        "lines": lines,
        "kept": kept,
    }


def _cell(row: dict | None) -> dict | None:
    if row is None:
        return None
    kind = ""
    if _is_significant(row):
        kind = "good" if row["error"] < row["error_kept"] else "bad"
    return row | {"p": None if np.isnan(row["p"]) else row["p"], "kind": kind}


def _collect_sheets(results: list[dict], settings: Settings) -> tuple[list[dict], int]:
    """Each method's most harmful pictures in the first draw that has any, and that draw.

    Without the data there are none, and the report is written all the same.
    """
    result = next((result for result in results if result["harmful"]), None)
    if result is None:
        return [], 0
    try:
        data = load(settings.data)
    except InvalidInput:
        return [], 0
    images, labels = data.train
    _, training = split_positions(settings, result["draw"], len(labels))
    sheets = []
    for method in [name for name in METHODS if name in result["harmful"]]:
        at = training[np.array(result["harmful"][method])]
        pictures = [
            {
                "id": int(k),
                "label": data.classes[labels[k]],
                "data": encode_data_url(images[k]),
                "pixels": images[k],
            }
            for k in at
        ]
        sheets.append({"method": NAMES[method], "pictures": pictures})
    return sheets, result["draw"]


def _average_agreement(results: list[dict]) -> tuple[list[str], list[dict]]:
    """The names of the methods, and the mean rank correlations between them."""
    seen: dict[str, list[float]] = {}
    for result in results:
        for pair, value in result["agreement"].items():
            seen.setdefault(pair, []).append(value)
    names = [name for name in METHODS if any(name in pair.split(" ~ ") for pair in seen)]
    mean = lambda a, b: float(np.mean(seen[f"{a} ~ {b}"])) if f"{a} ~ {b}" in seen else None
    rows = [{"method": NAMES[a], "cells": [mean(a, b) for b in names[1:]]} for a in names[:-1]]
    return [NAMES[name] for name in names], rows
