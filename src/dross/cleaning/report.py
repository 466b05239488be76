"""The report: one HTML file for a reader who has never heard of influence.

Figures are inline, and there are no scripts.
"""

import base64
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import _figures as charts
from .._figures import plot_agreement
from .._io import write_bytes
from .._text import render, safe
from .duplicates import Copies, describe_copies, describe_group, describe_natural, name_place
from .explain import Reasons, format_cell, order_columns, show_cell
from .findings import (
    describe_change,
    describe_checks,
    describe_doubted,
    explain_error_of_plan,
    list_notes,
    warn_of_classes,
    warn_of_disagreement,
)
from .label_noise import LIKELY
from .measures import tabulate_verdict
from .modality import Frame
from .plans import (
    NO_EDITS,
    count_by_class,
    describe_figure,
    draw_plans,
    list_measures,
    name_figures,
    tabulate_plans,
)
from .project import Project
from .project_info import JobInfo, Options, ProjectInfo, TrainingInfo, VerificationInfo
from .task import CLASSIFICATION

_CARDS = 12  # instances in each list
_PAIRS = 10  # of classes in a table
_MOST_COLUMNS = 12  # of classes in a matrix
_MOST_LETTERS = 120  # of the names of these columns
_CELLS_PER_CARD = 8
_LETTERS_PER_CARD = 400
_REQUEST_FLAGS = (
    "label",
    "text",
    "images",
    "validation",
    "test",
    "task",
    "group",
    "time",
    "separator",
    "features",
    "backbone",
)
_OPTION_FLAGS = {
    "model": "--model",
    "make": "--model",
    "lr": "--lr",
    "epochs": "--epochs",
    "batch_size": "--batch-size",
    "labels": "--labels",
}


def write_report(project: Project) -> Path:
    """Write report.html into the project's folder, with the latest verdict if there is one."""
    info = project.info
    training = info.training
    instances = project.table
    verdicts = project.verdicts()
    ranked = instances.sort_values("harm_rank")
    notes = [
        explain_error_of_plan(info),
        *warn_of_classes(info, instances),
        *list_notes(info, instances),
    ]
    shared = {
        "info": info,
        "story": _tell_story(project),
        "notes": list(filter(None, notes)),
        "verdict": verdicts[-1] if verdicts else None,
        "measures": tabulate_verdict(verdicts[-1]) if verdicts else [],
        "verdict_figure": safe(draw_verdict(verdicts[-1])) if verdicts else None,
        "plans": tabulate_plans(project.plans, info.recommendation.recommended),
        "plans_figure": safe(draw_plans_figure(info)),
        "copies": _describe_copies(project),
        "folder": str(project.folder),
    }
    if training is None:
        page = render(
            "chats.html",
            **shared,
            harmful=_cards(project, ranked.head(_CARDS)),
            helpful=_cards(project, ranked.tail(_CARDS // 2).iloc[::-1]),
        )
    else:
        suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank")
        page = render(
            "report.html",
            **shared,
            training=training,
            scatter=safe(_draw_verification(training.verification)),
            rate_search=safe(_draw_rate_search(training)),
            harmful=_cards(project, ranked.head(_CARDS)),
            helpful=_cards(project, ranked.tail(_CARDS // 2).iloc[::-1]),
            suggested=_tabulate_suggestions(project),
            mislabeled=_cards(project, suspects.head(_CARDS)),
            doubted=describe_doubted(info),
            disagreement=warn_of_disagreement(info),
            to_check=_label_cards(project),
            checks=describe_checks(info),
            per_class=_count_by_class(project),
            command=write_command(info, project.folder),
        )
    path = project.folder / "report.html"
    write_bytes(path, page.encode())
    return path


def _describe_copies(project: Project) -> dict[str, Any]:
    """The content of the section on copies."""
    info = project.info
    return {
        "findings": describe_copies(info.copies, info.counts),
        "natural": describe_natural(info.copies, info.modality),
        "groups": _show_groups(
            project.copies, project.image, classes=project.task is CLASSIFICATION
        ),
        "count": len(project.copies),
    }


def _tell_story(project: Project) -> list[dict[str, str]]:
    """The cards of the first screen, each a title, a value and a detail in words."""
    info = project.info
    plan = info.recommendation.plan
    total = info.counts["train"]
    story = []
    if (doubted := describe_doubted(info)) is not None:
        is_said = info.recommendation.state == "undecided"  # by the reason, in the next card
        detail = "By models that were not trained on them." if is_said else doubted.detail
        story.append({"title": doubted.title, "value": doubted.share, "detail": detail})
    if plan is None:
        story.append(
            {
                "title": "Recommendation",
                "value": "Change nothing",
                "detail": info.recommendation.reason,
            }
        )
    else:
        left = total - len(plan)
        story.append(
            {
                "title": "Recommendation",
                "value": plan.what.capitalize(),
                "detail": f"The other {left:,} of {total:,} training instances are unchanged.",
            }
        )
    return [*story, *_tell_errors(project), *_tell_verdict(project)]


def _tell_errors(project: Project) -> list[dict[str, str]]:
    """The error of models before the recommended plan and after it, on held-out instances."""
    info = project.info
    plan = info.recommendation.plan or next(iter(info.recommendation.plans), None)
    figures = {} if plan is None else name_figures(plan.figures)
    shown = [(name, describe_figure(name, figure)) for name, figure in figures.items()]
    if not shown:
        return []
    (first, words), *others = shown
    title = f"Held-out {first}"
    if info.recommendation.plan is None:
        return [
            {"title": title, "value": words["before"], "detail": "Trained on the unchanged data."}
        ]
    changes = [f"{words['change']}, 95 % confidence interval {words['interval']}."]
    changes += [
        f"{name.capitalize()}: {words['before']} → {words['after']}, interval for the change "
        f"{words['interval']}."
        for name, words in others
    ]
    value = f"{words['before']} → {words['after']}"
    return [{"title": title, "value": value, "detail": " ".join(changes)}]


def _tell_verdict(project: Project) -> list[dict[str, str]]:
    """Whether new models confirmed the edits."""
    verdicts = project.verdicts()
    title = "Verified by retraining"
    if not verdicts and project.recommended is None:
        return []  # there is nothing to verify
    if not verdicts:
        detail = f"dross judge {project.folder} trains new models with and without the edits."
        return [{"title": title, "value": "Not yet", "detail": detail}]
    changes = [
        f"{row['measure'].capitalize()}: {row['before']} → {row['after']}, interval for the change "
        f"{row['95 % confidence interval']}."
        for row in tabulate_verdict({"metrics": verdicts[-1]["metrics"]})
    ]
    value = verdicts[-1]["verdict"].capitalize()
    return [{"title": title, "value": value, "detail": " ".join(changes)}]


def _count_by_class(project: Project) -> list[dict[str, Any]]:
    """What the recommended plan does to every class; the last row has the sums."""
    if not project.classes:
        return []
    instances = project.table
    agreed = (instances["prediction"] == instances["label"]).groupby(instances["label"])
    effects = count_by_class(instances["label"].tolist(), project.recommended or NO_EDITS)
    rows = [
        {
            "name": effect.name,
            "before": effect.before,
            "removed": effect.removed,
            "relabeled": effect.relabeled,
            "gained": effect.gained,
            "left": effect.left,
            "agreed": int(agreed.sum().get(effect.name, 0)),
        }
        for effect in sorted(effects, key=lambda effect: project.classes.index(effect.name))
    ]
    counted = ("before", "removed", "relabeled", "gained", "left", "agreed")
    return [*rows, {"name": "all", **{name: sum(row[name] for row in rows) for name in counted}}]


def _tabulate_suggestions(project: Project) -> dict[str, Any]:
    """How often which label is given and which is suggested, among labels that look wrong.

    Returns:
        `columns` and `rows` of a table. With few classes it is a matrix of given against suggested
        labels, else a list of the most frequent pairs. Its last row has the sums.
    """
    if not project.classes:
        return {}
    instances = project.table
    wrong = instances[instances["wrong"] > LIKELY]
    if wrong.empty:
        return {}
    counts = wrong.groupby(["label", "prediction"]).size().sort_values(ascending=False)
    given = [name for name in project.classes if name in set(wrong["label"])]
    suggested = [name for name in project.classes if name in set(wrong["prediction"])]
    if len(suggested) <= _MOST_COLUMNS and sum(map(len, suggested)) <= _MOST_LETTERS:
        cell = lambda label, prediction: int(counts.get((label, prediction), 0))
        rows = [[cell(label, prediction) for prediction in suggested] for label in given]
        rows.append(np.sum(rows, axis=0).tolist())
        return {
            "matrix": True,
            "columns": suggested,
            "rows": [
                {"names": [name], "counts": [*row, sum(row)]}
                for name, row in zip([*given, "all"], rows, strict=True)
            ],
        }
    pairs = [{"names": list(pair), "counts": [int(count)]} for pair, count in counts.items()]
    rest = sum(row["counts"][0] for row in pairs[_PAIRS:])
    rows = pairs[:_PAIRS]
    if rest:
        more = f"{len(pairs) - _PAIRS:,} other pairs"
        rows.append({"names": [more, ""], "counts": [rest]})
    rows.append({"names": ["all", ""], "counts": [len(wrong)]})
    return {"matrix": False, "columns": [], "rows": rows}


def _cards(project: Project, rows: Frame) -> list[dict[str, Any]]:
    """Instances with their columns in `Project.table`, and what they look like."""
    cards = []
    for id, row in rows.iterrows():
        effects = {"effect": describe_change(row["score"], project.info), "verified": ""}
        if np.isfinite(row["verified"]):
            effects["verified"] = describe_change(row["verified"], project.info)
        content = project.content.iloc[id]
        look = _look(content, project.image("train", id), project.why(id))
        cards.append(row.to_dict() | effects | look)
    return cards


def _label_cards(project: Project) -> list[dict[str, Any]]:
    """The labels to check first."""
    cards = []
    for id, row in project.labels_to_check.head(_CARDS).iterrows():
        if project.checks_training:
            content = project.content.loc[id]
            image = project.image("train", id)
        else:
            content = project.validation.loc[id].drop([" source", " label"])
            image = project.image("validation", id)
        cards.append(row.to_dict() | _look(content, image, Reasons()))
    return cards


def _look(content: Any, image: bytes | None, why: Reasons) -> dict[str, Any]:
    """An instance as what it is: an image, a text, or the cells that matter most for it."""
    look: dict[str, Any] = {"image": None, "text": None, "cells": []}
    if image is not None:
        look["image"] = "data:image/png;base64," + base64.b64encode(image).decode()
    elif "text" in content.index:
        look["text"] = str(content["text"] or "")[:_LETTERS_PER_CARD]
    else:
        look["cells"] = [
            {
                "name": name,
                "value": show_cell(content[name]),
                "unusual": why.unusual.get(name, ""),
            }
            for name in order_columns(content.index, why.columns, why.unusual)[:_CELLS_PER_CARD]
        ]
    return look


def write_command(info: JobInfo, folder: Path, *, short: bool = False) -> str:
    """The command that makes this project again; data from Python are a file in the folder.

    Arguments:
        info: `Project.info`, not of chats.
        folder: Of the project.
        short: Whether to name files from the current folder on, where they lie in it, and to leave
            out defaults.
    """
    request = info.request.located(folder)
    options = info.options
    assert options is not None
    show = _shorten if short else str
    words = ["dross", "clean", show(request.data)]
    for name in _REQUEST_FLAGS:
        if (value := getattr(request, name)) is not None:
            words += [f"--{name}", show(value)]
    if request.sheet is not None:
        words += ["--sheet", request.sheet]
    for name, kind in request.columns.items():
        words += ["--column", f"{name}={kind}"]
    for cell in request.na or []:
        words += ["--na", cell]
    for name, flag in _OPTION_FLAGS.items():
        if (value := getattr(options, name)) is not None:
            words += [flag, str(value)]
    if options.validation_is_clean:
        words.append("--validation-is-clean")
    defaults = Options()
    for name, value, default in (
        ("repeats", options.repeats, defaults.repeats),
        ("check", options.check, defaults.check),
        ("seed", request.seed, 0),
    ):
        if not short or value != default:
            words += [f"--{name}", str(value)]
    return shlex.join([*words, "--out", show(str(folder))])


def _shorten(path: str) -> str:
    """A path from the current folder on, where it lies in it; other words stay."""
    here = Path.cwd()
    absolute = Path(path)
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else path


# --- copies --------------------------------------------------------------------------------------


_GROUPS_OF_COPIES = 24
_SHOWN_COPIES = 4  # of each group
_CELLS_OF_COPY = 8
_LETTERS_OF_COPY = 300


def _show_groups(
    copies: Copies, image_of: Callable[[str, int], bytes | None], *, classes: bool
) -> list[dict[str, Any]]:
    """The first groups, as the template copies.html shows them.

    Arguments:
        copies: Of a project.
        image_of: `Project.image`.
        classes: Whether labels are classes.
    """
    groups = []
    for number in list(dict.fromkeys(copies.table["group"].tolist()))[:_GROUPS_OF_COPIES]:
        rows = copies.group(number)
        shown = rows[: _SHOWN_COPIES - 1] + rows[-1:] if len(rows) > _SHOWN_COPIES else rows
        about = describe_group(copies, number, classes=classes)
        members = _show_members(copies, shown, image_of)
        groups.append({"about": about, "more": len(rows) - len(shown), "members": members})
    return groups


def _show_members(
    copies: Copies, rows: list[dict[str, Any]], image_of: Callable[[str, int], bytes | None]
) -> list[dict[str, Any]]:
    content = copies.content.iloc[[row["place"] for row in rows]]
    images = [image_of(row["part"], row["id"]) for row in rows]
    is_text = "text" in content
    cells = [] if is_text or any(images) else _choose_cells(content)
    return [
        {
            "place": name_place(row),
            "part": row["part"],
            "label": row["label"],
            "image": image and f"data:image/png;base64,{base64.b64encode(image).decode()}",
            "text": str(item["text"] or "")[:_LETTERS_OF_COPY] if is_text else None,
            "cells": [(name, _show_cell(item[name]), differs) for name, differs in cells],
        }
        for row, image, (_, item) in zip(rows, images, content.iterrows())
    ]


def _choose_cells(content: Frame) -> list[tuple[str, bool]]:
    """[(column, whether the members differ in it), ...]: first those in which they do."""
    differs = {name: len(set(map(_show_cell, content[name]))) > 1 for name in content.columns}
    return sorted(differs.items(), key=lambda column: not column[1])[:_CELLS_OF_COPY]


def _show_cell(value: Any) -> str:
    return format_cell(value) or "missing"


# --- figures --------------------------------------------------------------------------------------


@charts.house_style()
def draw_plans_figure(info: ProjectInfo) -> str:
    """How each plan changes each measure, as an <svg> element; "" where none was measured."""
    plans = info.recommendation.plans
    measures = list_measures(plans)
    if not measures:
        return ""
    rows = len(plans)
    count = len(measures)
    figure, panels = charts.panels(count, count, width=3.6 * count, height=0.9 + 0.3 * rows)
    draw_plans(panels, info.recommendation, measures)
    return charts.as_svg(figure)


@charts.house_style()
def _draw_verification(verification: VerificationInfo) -> str:
    figure, (panel,) = charts.panels(1, 1, width=3.6, height=2.9)
    plot_agreement(panel, np.array(verification.estimated), np.array(verification.actual))
    return charts.as_svg(figure)


@charts.house_style()
def _draw_rate_search(training: TrainingInfo) -> str:
    """The held-out loss against the number of epochs, one line per learning rate."""
    curves = training.search
    tried = training.searched_epochs
    figure, (panel,) = charts.panels(1, 1, width=5.2, height=2.4)
    colours = dict(zip(curves, ("#c9b28a", "#9bb8a0", "#b7a3c4", "#c7a0a0", "#a8b3bd", "0.7")))
    for rate, losses in curves.items():
        is_chosen = np.isclose(rate, training.recipe.rate)
        panel.plot(
            tried,
            [loss if np.isfinite(loss) else np.nan for loss in losses],
            color=charts.BLUE if is_chosen else colours[rate],
            linewidth=1.4 if is_chosen else 0.8,
            marker="o",
            markersize=3,
            label=f"learning rate {rate:g}{' (chosen)' if is_chosen else ''}",
        )
    panel.set(xlabel="epochs (every point is a complete training run)", ylabel="held-out loss")
    shown = [loss for losses in curves.values() for loss in losses if 0 < loss < np.inf]
    if shown:  # data that are easy to learn reach 0
        lowest, highest = min(shown), max(shown)
        panel.set(yscale="log", ylim=(0.9 * lowest, min(highest, 20 * lowest)))
    panel.legend()
    return charts.as_svg(figure)


@charts.house_style()
def draw_verdict(verdict: dict) -> str:
    """Seed by seed: the control, before, and after."""
    metrics = verdict["metrics"]
    figure, panels = charts.panels(len(metrics), len(metrics), width=3.4 * len(metrics), height=2.6)
    for panel, (name, comparison) in zip(panels, metrics.items()):
        scale = 100 if name == "error" else 1
        groups = [scale * np.array(comparison[key]) for key in ("random", "before", "after")]
        for one_seed in zip(*groups):
            panel.plot(range(3), one_seed, color="0.85", linewidth=0.7, zorder=0)
        for place, (group, colour) in enumerate(zip(groups, (charts.GREY, "0.2", charts.BLUE))):
            places = np.full(len(group), place)
            panel.scatter(places, group, s=12, color=colour, alpha=0.8, linewidths=0)
            panel.plot([place - 0.2, place + 0.2], [group.mean()] * 2, color=colour, linewidth=1.6)
        panel.set_xticks(range(3), ["random\ncontrol", "before", "after"])
        panel.set(ylabel="error, %" if name == "error" else name, xlim=(-0.5, 2.5))
    return charts.as_svg(figure)
