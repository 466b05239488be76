"""Why an instance is in the list, in words."""

import math
from typing import Any

from ..cleaning.duplicates import describe_group, name_likeness
from ..cleaning.explain import Hurt, Reasons, format_cell, order_columns, show_cell
from ..cleaning.findings import describe_amount, describe_change, name_alternative
from ..cleaning.label_noise import LIKELY
from ..cleaning.plans import KEEP, RELABEL
from ..cleaning.project_info import ProjectInfo
from ..cleaning.task import CLASSIFICATION, REGRESSION, TASKS
from ..errors import InvalidInput
from .listing import Listing

_MAX_SUMMARY = 240  # characters
_MAX_COPIES = 20
_MAX_TEXT = 20_000  # characters


def explain_instance(listing: Listing, id: int) -> dict[str, Any]:
    """Return everything that the page shows about a training instance, as JSON."""
    project = listing.project
    if not 0 <= id < len(project.table):
        raise InvalidInput(
            f"There is no training instance {id}: ids run from 0 to {len(project.table) - 1}."
        )
    why = project.why(id)
    sentences = reason_sentences(project.table.loc[id], project.info)
    copies = project.copies
    if (group := copies.group_of(id)) is not None:
        text = describe_group(copies, group, classes=project.task is CLASSIFICATION)
        sentences.insert(0, {"about": "Duplicates", "text": text})
    explained = listing.item(id) | {
        "sentences": sentences,
        "copies": [_copy(listing, id, row) for row in copies.others(id)[:_MAX_COPIES]],
    }
    if project.modality.has_tokens:
        return explained | {"content": {"tokens": listing.whole_chat(id)}, "words": []}
    return explained | {
        "content": full_content(listing, project.content.loc[id], why),
        "words": why.words,
        "hurts": [_harmed_instance(listing, hurt) for hurt in why.hurts],
        "similar": [_summary(listing, "train", other) for other in why.similar],
    }


def reason_sentences(row: Any, info: ProjectInfo) -> list[dict[str, str]]:
    """Return [{about, text}, ...] for a row of the instances and the facts about its project.

    Their subjects are the recommendation, the effect and its confidence, the label and the
    prediction, the result of retraining, and how unusual it is.
    """
    found = {
        "Recommended": _recommended(row),
        "Effect": _effect(row, info),
        "Confidence": _confidence(row, info),
    }
    if info.modality.has_tokens:
        found["Loss"] = (
            f"The loss of its response is {row['loss']:.2f} per token before fine-tuning and "
            f"{row['training_loss']:.2f} after it."
        )
    else:
        found |= {
            "Label": describe_label(row, info),
            "Verified": _verification(row, info),
        }
    if math.isfinite(row["outlier"]):
        share = format_percent(min(row["outlier"], 0.99))
        found["Unusual"] = f"It is more unusual than {share} of the training instances."
    return [{"about": subject, "text": text} for subject, text in found.items()]


def _recommended(row: Any) -> str:
    if row["action"] == KEEP:
        return "No change: it is not in the plan."
    what = f"Relabel it as {row['prediction']}" if row["action"] == RELABEL else "Remove it"
    if not math.isfinite(row["confidence"]):
        return f"{what}."
    if row["action"] == RELABEL:
        return f"{what}: this label is right with probability {format_percent(row['confidence'])}."
    return f"{what}: its label is wrong with probability {format_percent(row['confidence'])}."


def _effect(row: Any, info: ProjectInfo) -> str:
    score = row["score"]
    if not math.isfinite(score):
        return "Its effect is not known."
    if score == 0:
        return f"The estimated {info.measure} would be the same without it."
    bounded = info.measure.startswith("bounded")
    explained = " (0 means exact, 1 means far off)" if bounded else ""
    change = f"{describe_change(score, info)}{explained}"
    # only the plans of chats follow the effect; others may edit what helps
    concerns = "The recommendation concerns its label and does not depend on this effect."
    seems_odd = row["action"] != KEEP and (score > 0 or _runs_disagree(row))
    rests = f" {concerns}" if seems_odd and not info.modality.has_tokens else ""
    if _runs_disagree(row):
        return f"Without it, {change} on average over the runs, but the runs disagree.{rests}"
    meaning = "it makes the model worse" if score < 0 else "it helps the model"
    return f"Without it, {change}: {meaning}.{rests}"


def _runs_disagree(row: Any) -> bool:
    return row["harmful_in"] not in (0, row["learned_in"])


def _confidence(row: Any, info: ProjectInfo) -> str:
    runs = int(row["learned_in"])
    if not runs:
        return "No recorded run included it, so its effect is not known."
    if runs < 2:
        return "It was estimated from one training run; a different seed may give a different estimate."
    times = int(row["harmful_in"])
    harm = f"It is harmful in {times} of the {runs} training runs that included it"
    varies = f"from run to run the estimate varies by {describe_amount(row['spread'], info)}"
    if _runs_disagree(row):
        return f"{harm}, so its effect may be due to chance; {varies}."
    if abs(row["score"]) > row["spread"]:
        return f"{harm}: all runs agree; {varies}."
    uncertain = "more than the estimate itself, so its size is uncertain"
    return f"{harm}: all runs agree; {varies}, {uncertain}."


def describe_label(row: Any, info: ProjectInfo) -> str:
    """Return a sentence that compares a label with the predictions of models not trained on it."""
    label = row["label"]
    prediction = row["prediction"]
    is_number = TASKS[info.task] is REGRESSION
    given = f"Its {'value' if is_number else 'label'} is {label}"
    if not prediction:
        return f"{given}. It was not examined, so there is no prediction for it."
    wrong = ""
    if math.isfinite(row["wrong"]):
        what = "It" if is_number else "The label"
        wrong = f" {what} is wrong with probability {format_percent(row['wrong'])}"
        if row["wrong"] > LIKELY and (otherwise := name_alternative(info)):
            wrong += f", unless {otherwise}"
        wrong += "."
    if is_number:
        models = f"models that were not trained on it predict {prediction}"
        return f"{given}; {models}.{wrong}"
    sure = format_percent(row["probability"])
    if label == prediction:
        return f"{given}; models that were not trained on it agree ({sure}).{wrong}"
    return (
        f"{given}; models that were not trained on it predict {prediction} ({sure}) and assign its "
        f"label a probability of {format_percent(row['label_probability'])}.{wrong}"
    )


def _verification(row: Any, info: ProjectInfo) -> str:
    true = row["verified"]
    if not math.isfinite(true):
        return "Not checked by retraining; the effect is an estimate."
    agrees = true * row["score"] > 0
    return (
        f"The first run was repeated without it: {describe_change(true, info)}, "
        f"{'in the same direction as' if agrees else 'unlike'} the estimate (which is the mean "
        "over runs)."
    )


def format_percent(share: float) -> str:
    """0.93 -> 93 %, with a space that does not break."""
    return f"{100 * share:.0f}\u00a0%"


def full_content(listing: Listing, content: Any, why: Reasons) -> dict[str, Any]:
    """Return the whole content of an instance of any set, as JSON.

    The fields of a table are [name, cell, what is unusual, how far it supports the label], and
    those that matter most for this row come first.
    """
    if listing.project.modality.has_text:
        return {"text": str(content["text"])[:_MAX_TEXT]}
    if listing.project.modality.has_images:
        return {"fields": []}
    unusual = listing.unusual(content, why)
    weights = dict(why.columns)
    return {
        "fields": [
            [name, show_cell(content[name]), unusual.get(name), weights.get(name)]
            for name in order_columns(content.index, why.columns, unusual)
        ]
    }


def _harmed_instance(listing: Listing, hurt: Hurt) -> dict[str, Any]:
    part = "train" if listing.project.checks_training else "validation"
    return _summary(listing, part, hurt.id) | {"change": hurt.change, "verified": hurt.measured}


def _copy(listing: Listing, id: int, row: dict[str, Any]) -> dict[str, Any]:
    """A copy of an instance, in any set: of a table, the cells that differ."""
    content = listing.project.copies.content.iloc[row["place"]]
    if listing.project.modality.has_columns:
        cells = listing.project.content.loc[id]
        names = content.index.intersection(cells.index)
        content = content[
            [name for name in names if format_cell(content[name]) != format_cell(cells[name])]
        ]
    return {name: row[name] for name in ("id", "part", "source", "label")} | {
        "brief": _brief(listing, content) or "Every cell is the same.",
        "how": f"{'training' if row['part'] == 'train' else row['part']} set, "
        f"{name_likeness(row['is_same'])}",
    }


def _summary(listing: Listing, part: str, id: int) -> dict[str, Any]:
    """Another instance, briefly."""
    project = listing.project
    if part == "train":
        content = project.content.loc[id]
        source, label = project.table.loc[id, ["source", "label"]]
    else:
        content = project.validation.loc[id]
        source, label = content[[" source", " label"]]
    return {
        "id": id,
        "part": part,
        "source": str(source),
        "label": str(label),
        "brief": _brief(listing, content),
    }


def _brief(listing: Listing, content: Any) -> str:
    if listing.project.modality.has_images:
        return ""
    if listing.project.modality.has_text:
        text = str(content["text"])
        return text[:_MAX_SUMMARY] + (" …" if len(text) > _MAX_SUMMARY else "")
    cells = [
        f"{name} {cell}"
        for name, value in content.items()
        if name not in (" source", " label") and (cell := show_cell(value)) is not None
    ]
    return ", ".join(cells)[: 2 * _MAX_SUMMARY]
