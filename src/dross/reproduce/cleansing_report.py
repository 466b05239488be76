"""The cleansing experiment to look at: figures, contact sheets, one HTML file with everything in it, and the tables behind it."""

from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import load
from ..errors import DataUnavailable
from ..support import charts
from ..support.atomic_files import write_table
from ..support.html import render, safe
from ..support.png import encode_data_url
from .cleansing import METHODS, RETRAINED, SHOWN, Settings, positions, summarized

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
        "The recorded run from its start without the removed instances: same initial weights, same order.",
    ),
    "fresh": (
        "Retrain Fresh",
        "A new run with new seeds, with and without the removed instances: what a user would do next.",
    ),
}
_COLOURS = {
    "retrace": charts.BLUE,
    "last-epoch": "#5b9bd5",
    "k&l": charts.ORANGE,
    "random": charts.GREY,
}


def write(folder: Path, results: list[dict], settings: Settings, command: str) -> list[Path]:
    """Everything there is to see of these results, in the folder they are kept in."""
    rows = [row | {"draw": result["draw"]} for result in results for row in result["rows"]]
    table = summarized(rows)
    paths = [
        write_table(folder / f"{settings.data}-rows.csv", rows),
        write_table(folder / f"{settings.data}-summary.csv", table),
    ]
    paths.append(folder / f"{settings.data}-summary.md")
    paths[-1].write_text(as_markdown(table))
    ways = []
    for way in [way for way in RETRAINED if any(row["retrain"] == way for row in table)]:
        mine = [row for row in table if row["retrain"] == way]
        at = (
            100
            if 100 in {row["m"] for row in mine}
            else sorted({row["m"] for row in mine})[len({row["m"] for row in mine}) // 2]
        )
        drawn = {
            "curves": curves(mine),
            "before-after": before_after([row for row in rows if row["retrain"] == way], at),
        }
        paths += [
            charts.save_svg(svg, folder / f"{settings.data}-{way}-{name}.svg")
            for name, svg in drawn.items()
        ]
        ways.append(_shown_way(way, mine, at, drawn))
    sheets, sheet_draw = _sheets(results, settings)
    if sheets:
        paths.append(
            charts.save_svg(contact_sheet(sheets), folder / f"{settings.data}-contact-sheet.svg")
        )
    page = folder / f"{settings.data}.html"
    names, agreement = _agreement(results)
    page.write_text(
        render(
            "cleansing.html",
            data=settings.data,
            draws=len(results),
            settings=settings,
            findings=findings(table),
            ways=ways,
            sheets=sheets,
            sheet_draw=sheet_draw,
            shown=SHOWN,
            agreement=agreement,
            agreement_names=names,
            command=command,
            versions="; ".join(dict.fromkeys(result["made_on"] for result in results)),
        )
    )
    return [*paths, page]


def findings(table: list[dict]) -> list[str]:
    """What came out, in sentences that the numbers bear out."""
    sentences = []
    for way in dict.fromkeys(row["retrain"] for row in table):
        mine = [row for row in table if row["retrain"] == way]
        better = {
            method: [
                row["m"]
                for row in mine
                if row["method"] == method and row["p"] < 0.05 and row["error"] < row["error_kept"]
            ]
            for method in dict.fromkeys(row["method"] for row in mine)
        }
        found = [
            f"{NAMES[method]} (m = {_ranges(sizes)})" for method, sizes in better.items() if sizes
        ]
        draws = mine[0]["draws"]
        if draws < 3:
            sentences.append(
                f"{WAYS[way][0]}: {draws} draw{'s' if draws > 1 else ''} can show a direction, not prove it."
            )
        elif found:
            sentences.append(
                f"{WAYS[way][0]}: the test error fell significantly (paired t-test over {draws} draws, p < 0.05) with {'; '.join(found)}."
            )
        else:
            sentences.append(
                f"{WAYS[way][0]}: no method lowered the test error significantly (paired t-test over {draws} draws)."
            )
    return sentences


def _ranges(sizes: list[int]) -> str:
    return ", ".join(f"{m:,}" for m in sizes)


def as_markdown(table: list[dict]) -> str:
    lines = [
        "| retrain | method | m | draws | error | error, nothing removed | p | improved |",
        "| --- " * 8 + "|",
    ]
    for row in table:
        p = "" if np.isnan(row["p"]) else f"{row['p']:.3f}"
        lines.append(
            f"| {row['retrain']} | {row['method']} | {row['m']} | {row['draws']} | {row['error']:.3%} | {row['error_kept']:.3%} | {p} | "
            f"{row['improved']}/{row['draws']} |"
        )
    return "\n".join(lines) + "\n"


# --- figures --------------------------------------------------------------------------------------------------------------------------


def curves(table: list[dict]) -> str:
    """Error against m, one panel per method, each with the models that kept everything."""
    methods = [name for name in METHODS if any(row["method"] == name for row in table)]
    figure, panels = charts.panels(
        len(methods), min(4, len(methods)), height=1.9, sharex=True, sharey=True
    )
    for panel, method in zip(panels, methods):
        mine = sorted((row for row in table if row["method"] == method), key=lambda row: row["m"])
        m, error, spread, kept = (
            np.array([row[key] for row in mine])
            for key in ("m", "error", "error_std", "error_kept")
        )
        colour = _COLOURS.get(method, charts.GREEN)
        kept_spread = np.array([row["error_kept_std"] for row in mine])
        panel.fill_between(
            m, 100 * (kept - kept_spread), 100 * (kept + kept_spread), color="0.92", linewidth=0
        )
        panel.plot(m, 100 * kept, color="0.55", linewidth=0.8)
        panel.fill_between(
            m, 100 * (error - spread), 100 * (error + spread), color=colour, alpha=0.18, linewidth=0
        )
        panel.plot(m, 100 * error, color=colour, linewidth=1.2)
        sure = np.array([row["p"] < 0.05 for row in mine])
        panel.scatter(m[sure], 100 * error[sure], s=12, color=colour, zorder=3)
        panel.scatter(
            m[~sure],
            100 * error[~sure],
            s=12,
            facecolors="white",
            edgecolors=colour,
            linewidths=0.8,
            zorder=3,
        )
        panel.set(xscale="log", title=NAMES[method])
    figure.supxlabel("removed instances m", fontsize=8)
    figure.supylabel("test error, %", fontsize=8)
    return charts.as_svg(figure)


def before_after(rows: list[dict], m: int) -> str:
    """One dot per draw: the error with everything kept, and without the m most harmful."""
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    figure, panels = charts.panels(
        len(methods), min(4, len(methods)), height=2.0, sharex=True, sharey=True
    )
    for panel, method in zip(panels, methods):
        mine = [row for row in rows if row["method"] == method and row["m"] == m]
        kept, error = (
            100 * np.array([row[key] for row in mine]) for key in ("error_kept", "error")
        )
        low, high = min(kept.min(), error.min()), max(kept.max(), error.max())
        panel.plot([low, high], [low, high], color="0.7", linewidth=0.7, zorder=0)
        panel.scatter(
            kept, error, s=11, color=_COLOURS.get(method, charts.GREEN), alpha=0.85, linewidths=0
        )
        panel.set_title(f"{NAMES[method]}\n{int((error < kept).sum())} of {len(mine)} better")
    figure.supxlabel("test error with everything kept, %", fontsize=8)
    figure.supylabel(f"with {m} removed, %", fontsize=8)
    return charts.as_svg(figure)


def contact_sheet(sheets: list[dict]) -> str:
    """The most harmful of each method, a row each, labels above."""
    figure, _ = charts.panels(1, 1, width=7.6, height=0.52 * len(sheets) + 0.1)
    grid = figure.subplots(len(sheets), SHOWN, squeeze=False)
    figure.axes[0].set_visible(False)
    for line, sheet in zip(grid, sheets):
        for cell in line:
            cell.axis("off")
        for cell, picture in zip(line, sheet["pictures"]):
            cell.imshow(picture["pixels"], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            cell.set_title(picture["label"][:6], fontsize=5, pad=1.5)
        line[0].text(
            -0.25,
            0.5,
            sheet["method"],
            transform=line[0].transAxes,
            ha="right",
            va="center",
            fontsize=6,
        )
    return charts.as_svg(figure)


# --- parts of the page ----------------------------------------------------------------------------------------------------------------


def _shown_way(way: str, table: list[dict], at: int, drawn: dict[str, str]) -> dict[str, Any]:
    sizes = sorted({row["m"] for row in table})
    by_place = {(row["method"], row["m"]): row for row in table}
    lines = [
        {"method": NAMES[method], "cells": [_cell(by_place.get((method, m))) for m in sizes]}
        for method in METHODS
        if any(row["method"] == method for row in table)
    ]
    kept = float(np.mean([row["error_kept"] for row in table]))
    return {
        "title": WAYS[way][0],
        "meaning": WAYS[way][1],
        "curves": safe(drawn["curves"]),
        "scatter": safe(drawn["before-after"]),
        "at": at,
        "sizes": sizes,
        "lines": lines,
        "kept": kept,
    }


def _cell(row: dict | None) -> dict | None:
    if row is None:
        return None
    sure = row["p"] < 0.05
    kind = "" if not sure else "good" if row["error"] < row["error_kept"] else "bad"
    return row | {"p": None if np.isnan(row["p"]) else row["p"], "kind": kind}


def _sheets(results: list[dict], settings: Settings) -> tuple[list[dict], int]:
    """The pictures of the first draw that has any. Without the data there is a report all the same."""
    result = next((result for result in results if result["harmful"]), None)
    if result is None:
        return [], 0
    try:
        data = load(settings.data)
    except DataUnavailable:
        return [], 0
    images, labels = data.train
    _, training = positions(settings, result["draw"], len(labels))
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


def _agreement(results: list[dict]) -> tuple[list[str], list[dict]]:
    seen: dict[str, list[float]] = {}
    for result in results:
        for pair, value in result["agreement"].items():
            seen.setdefault(pair, []).append(value)
    names = [name for name in METHODS if any(name in pair.split(" ~ ") for pair in seen)]
    mean = lambda a, b: float(np.mean(seen[f"{a} ~ {b}"])) if f"{a} ~ {b}" in seen else None
    return [NAMES[name] for name in names], [
        {"method": NAMES[a], "cells": [mean(a, b) for b in names[1:]]} for a in names[:-1]
    ]
