"""The report of the cleansing experiment: figures and tables."""

from pathlib import Path

import numpy as np
import pandas

from dross import _figures as charts

from .cleansing import (
    IMAGES_PER_METHOD,
    METHODS,
    RETRAIN_WAYS,
    Settings,
    split_positions,
    summarize,
)
from .datasets import load

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
WAYS = {"last": "Retrain Last", "all": "Retrain All", "fresh": "Retrain Fresh"}
_COLOURS = {
    "retrace": charts.BLUE,
    "last-epoch": "#5b9bd5",
    "k&l": charts.ORANGE,
    "random": charts.GREY,
}


def write_report(folder: Path, results: list[dict], settings: Settings) -> list[Path]:
    """Write tables and figures of these results into the folder they are kept in."""
    name = settings.data
    rows = [row | {"draw": result["draw"]} for result in results for row in result["rows"]]
    table = summarize(rows)
    names = ("rows.csv", "summary.csv", "summary.md")
    paths = [folder / f"{name}-{end}" for end in names]
    pandas.DataFrame(rows).to_csv(paths[0], index=False)
    pandas.DataFrame(table).to_csv(paths[1], index=False)
    paths[2].write_text(as_markdown(table), encoding="utf-8")
    for way in RETRAIN_WAYS:
        summary = [row for row in table if row["retrain"] == way]
        if not summary:
            continue
        chosen = [row for row in rows if row["retrain"] == way]
        figures = {
            "curves": curves(summary),
            "before-after": before_after(chosen, _typical_count(summary)),
        }
        for kind, svg in figures.items():
            paths.append(charts.save_svg(svg, folder / f"{name}-{way}-{kind}.svg"))
    svg = contact_sheet(results[0], settings)
    return [*paths, charts.save_svg(svg, folder / f"{name}-contact-sheet.svg")]


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
        methods = [f"{NAMES[method]} (m = {', '.join(m)})" for method, m in better.items() if m]
        draws = summary[0]["draws"]
        if draws < 3:
            finding = f"{draws} draw{'s' if draws > 1 else ''} can show a direction, not prove it."
        elif methods:
            finding = (
                f"the test error fell significantly (paired t-test over {draws} draws, p < 0.05) "
                f"with {'; '.join(methods)}."
            )
        else:
            finding = (
                "no method lowered the test error significantly (paired t-test over "
                f"{draws} draws)."
            )
        sentences.append(f"{WAYS[way]}: {finding}")
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
def contact_sheet(result: dict, settings: Settings) -> str:
    """The most harmful images of a draw, a row for each method, with their labels above."""
    data = load(settings.data)
    images, labels = data.train
    _, training = split_positions(settings, result["draw"], len(labels))
    methods = [name for name in METHODS if name in result["harmful"]]
    figure, _ = charts.panels(1, 1, width=7.6, height=0.52 * len(methods) + 0.1)
    figure.axes[0].set_visible(False)
    grid = figure.subplots(len(methods), IMAGES_PER_METHOD, squeeze=False)
    for line, method in zip(grid, methods):
        for cell in line:
            cell.axis("off")
        for cell, k in zip(line, training[np.array(result["harmful"][method])]):
            cell.imshow(images[k], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            cell.set_title(data.classes[labels[k]][:6], fontsize=5, pad=1.5)
        style = {"transform": line[0].transAxes, "ha": "right", "va": "center"}
        line[0].text(-0.25, 0.5, NAMES[method], fontsize=6, **style)
    return charts.as_svg(figure)
