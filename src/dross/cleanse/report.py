"""The report: one HTML file for somebody who has never heard of influence. Figures are inline, there are no scripts."""

import base64
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from ..support import charts
from ..support.html import render, safe
from .project import Project

_SHOWN = 24
_CELLS = 8


def write(project: Project) -> Path:
    path = project.folder / "report.html"
    about, instances, verdicts = project.about, project.instances, project.verdicts()
    ranked = instances.sort_values("harm_rank")
    suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank")
    pages = render(
        "report.html",
        about=about,
        name=about["name"],
        findings=findings(project),
        verdict=verdicts[-1] if verdicts else None,
        verdict_figure=safe(dots(verdicts[-1])) if verdicts else None,
        curve=safe(curve(about["curve"])),
        scatter=safe(verified(about["verification"])),
        training=safe(training(about["search"], about["recipe"]["rate"])),
        harmful=cards(project, ranked.head(_SHOWN)),
        helpful=cards(project, ranked.tail(_SHOWN // 2).iloc[::-1]),
        mislabelled=cards(project, suspects.head(_SHOWN)),
        per_class=per_class(project),
        command=command(about),
        folder=str(project.folder),
    )
    path.write_text(pages)
    return path


def findings(project: Project) -> list[str]:
    about, instances = project.about, project.instances
    count, m = len(instances), about["suggested"]["m"]
    sure = int(((instances["harmful_in"] == about["runs"]) & (instances["score"] < 0)).sum())
    suspects = int((instances["mislabel_rank"] >= 0).sum())
    first = (
        f"Of {count:,} training instances, {sure:,} made the validation loss worse in every one of {about['runs']} independent runs."
        if about["runs"] > 1
        else f"Of {count:,} training instances, {sure:,} made the validation loss worse in the run that was recorded."
    )
    if m:
        second = f"Removing the {m:,} most harmful is suggested: {about['suggested']['reason']}.{_lopsided(project, m)}"
    else:
        second = f"No removal is suggested: {about['suggested']['reason']}."
    if project.classes:
        third = f"{suspects:,} instances have a label that the models would not give them; the report lists the likeliest mistakes first."
    else:
        third = f"{suspects:,} instances are far from what the models predict for them; the report lists them."
    return [first, second, third]


def _lopsided(project: Project, m: int) -> str:
    """A ranking that blames one class mostly moves the decision between classes; a person should know."""
    first = project.instances[project.instances["harm_rank"] < m]["label"].value_counts()
    usual = project.instances["label"].value_counts(normalize=True)
    if not project.classes or m < 10 or first.iloc[0] < 0.8 * m or usual[first.index[0]] > 0.75:
        return ""
    return (
        f" But {first.iloc[0]} of them are '{first.index[0]}': that shifts the decision between the classes more than it removes mistakes. Look at them, "
        "and at those that are probably mislabelled, before you remove them."
    )


def per_class(project: Project) -> list[dict[str, Any]]:
    """How the suggestions fall on the classes."""
    instances, m = project.instances, project.about["suggested"]["m"]
    rows = []
    for name in project.classes:
        mine = instances[instances["label"] == name]
        if len(mine):
            rows.append(
                {
                    "name": name,
                    "count": len(mine),
                    "suggested": int((mine["harm_rank"] < m).sum()),
                    "suspects": int((mine["mislabel_rank"] >= 0).sum()),
                    "right": float((mine["prediction"] == name).mean()),
                }
            )
    return rows


def cards(project: Project, rows: Any) -> list[dict[str, Any]]:
    """Instances as what they are: pictures, texts, or the cells that matter."""
    shown = []
    for k, row in rows.iterrows():
        content, why = project.content.iloc[int(k)], project.why(int(k))
        card = {
            "id": int(k),
            "source": row["source"],
            "label": row["label"],
            "prediction": row["prediction"],
            "score": row["score"],
            "harmful_in": int(row["harmful_in"]),
            "verified": None if np.isnan(row["verified"]) else float(row["verified"]),
            "probability": None if np.isnan(row["probability"]) else float(row["probability"]),
            "picture": None,
            "text": None,
            "cells": [],
        }
        picture = project.picture("train", int(k))
        if picture is not None:
            card["picture"] = "data:image/png;base64," + base64.b64encode(picture).decode()
        elif "text" in content.index:
            card["text"] = str(content["text"] or "")[:400]
        else:
            unusual = list(why["unusual"])
            names = unusual + [str(name) for name in content.index if name not in unusual]
            card["cells"] = [
                {
                    "name": n,
                    "value": None if content[n] is None or content[n] != content[n] else content[n],
                    "unusual": why["unusual"].get(n, ""),
                }
                for n in names[:_CELLS]
            ]
        shown.append(card)
    return shown


def command(about: dict) -> str:
    request, options = about["request"], about["options"]
    words = ["dross", "clean", request["data"]]
    for name in ("label", "text", "images", "validation", "test", "task"):
        if request[name] is not None:
            words += [f"--{name}", request[name]]
    for name, kind in request["columns"].items():
        words += ["--column", f"{name}={kind}"]
    for name, flag in (
        ("model", "--model"),
        ("make", "--model"),
        ("rate", "--rate"),
        ("epochs", "--epochs"),
        ("batch_size", "--batch-size"),
    ):
        if options[name] is not None:
            words += [flag, str(options[name])]
    words += [
        "--runs",
        str(options["runs"]),
        "--rounds",
        str(options["rounds"]),
        "--seed",
        str(request["seed"]),
    ]
    return shlex.join(words)


# --- figures --------------------------------------------------------------------------------------------------------------------------


def curve(found: dict) -> str:
    figure, (panel,) = charts.panels(1, 1, width=5.2, height=2.6)
    sizes, changes = np.array(found["sizes"]), np.array(found["changes"])
    for line in changes:
        panel.plot(sizes, line, color="0.8", linewidth=0.7)
    mean, error = changes.mean(0), np.array(found["errors"])
    panel.fill_between(
        sizes, mean - 2 * error, mean + 2 * error, color=charts.BLUE, alpha=0.15, linewidth=0
    )
    panel.plot(sizes, mean, color=charts.BLUE, marker="o", markersize=3)
    panel.axhline(0, color="0.4", linewidth=0.7)
    if found["m"] in sizes:
        panel.axvline(found["m"], color=charts.RED, linewidth=0.8, linestyle=":")
    panel.set(xscale="log", xlabel="instances removed", ylabel="change of the validation loss")
    panel.set_xticks(sizes, [f"{m:,}" for m in sizes])
    panel.minorticks_off()
    return charts.as_svg(figure)


def verified(check: dict) -> str:
    figure, (panel,) = charts.panels(1, 1, width=3.6, height=2.9)
    estimated, actual = np.array(check["estimated"]), np.array(check["actual"])
    panel.scatter(estimated, actual, s=12, color=charts.BLUE, alpha=0.8, linewidths=0)
    ends = [min(estimated.min(), actual.min()), max(estimated.max(), actual.max())]
    panel.plot(ends, ends, color="0.6", linewidth=0.7, zorder=0)
    panel.set(xlabel="estimated change", ylabel="change when retrained without it")
    panel.ticklabel_format(style="sci", scilimits=(-2, 2))
    panel.locator_params(nbins=5)
    return charts.as_svg(figure)


def training(curves: dict[str, list[float]], chosen: float) -> str:
    figure, (panel,) = charts.panels(1, 1, width=5.2, height=2.4)
    colours = dict(zip(curves, ("#c9b28a", "#9bb8a0", "#b7a3c4", "#c7a0a0", "#a8b3bd", "0.7")))
    for rate, values in curves.items():
        mine = np.isclose(float(rate), chosen)
        finite = [value if np.isfinite(value) else np.nan for value in values]
        panel.plot(
            np.arange(1, len(values) + 1),
            finite,
            color=charts.BLUE if mine else colours[rate],
            linewidth=1.4 if mine else 0.8,
            label=f"rate {float(rate):g}{' (chosen)' if mine else ''}",
        )
    sane = [value for values in curves.values() for value in values if np.isfinite(value)]
    panel.set(
        xlabel="epoch",
        ylabel="validation loss",
        yscale="log",
        ylim=(0.9 * min(sane), min(max(sane), 20 * min(sane))),
    )
    panel.legend()
    return charts.as_svg(figure)


def dots(verdict: dict) -> str:
    """Seed by seed: before and after, and the control."""
    names = list(verdict["metrics"])
    figure, panels = charts.panels(len(names), len(names), width=3.4 * len(names), height=2.6)
    for panel, name in zip(panels, names):
        found, scale = verdict["metrics"][name], 100 if name == "error" else 1
        lines = [scale * np.array(found[key]) for key in ("random", "before", "after")]
        for line in zip(*lines):
            panel.plot(range(3), line, color="0.85", linewidth=0.7, zorder=0)
        for place, (line, colour) in enumerate(zip(lines, (charts.GREY, "0.2", charts.BLUE))):
            panel.scatter(
                np.full(len(line), place), line, s=12, color=colour, alpha=0.8, linewidths=0
            )
            panel.plot([place - 0.2, place + 0.2], [line.mean()] * 2, color=colour, linewidth=1.6)
        panel.set_xticks(
            range(3),
            [
                "as many\nat random",
                "everything\nkept",
                "this\nremoval" if not verdict["relabelled"] else "this\nchange",
            ],
        )
        panel.set(ylabel="test error, %" if name == "error" else "test loss", xlim=(-0.5, 2.5))
    return charts.as_svg(figure)
