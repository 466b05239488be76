"""Why an instance is in the list, in plain words."""

import math
from typing import Any

from ..errors import BadInput
from .listing import Listing, number, plain

_TEXT_BESIDE = 240
_LONGEST_TEXT = 20_000


def explain(listing: Listing, id: int) -> dict[str, Any]:
    project = listing.project
    if not 0 <= id < len(project.instances):
        raise BadInput(f"There is no training instance {id}; there are {len(project.instances)}.")
    why = project.why(id)
    return (
        listing.item(id)
        | {"sentences": sentences(project.instances.loc[id], project.about)}
        | {"content": _whole(listing, id, why["unusual"]), "words": why["words"]}
        | {"hurts": [_hurt(listing, *entry) for entry in why["hurts"]]}
        | {"similar": [_beside(listing, "train", int(other)) for other in why["similar"]]}
    )


def sentences(row: Any, about: dict[str, Any]) -> list[dict[str, str]]:
    """[{about, text}]: the effect, how sure it is, label against prediction, the check by retraining, how unusual it is."""
    found = [
        {"about": "Effect", "text": _effect(row["score"])},
        {"about": "Confidence", "text": _confidence(row, about["runs"])},
        {"about": "Label", "text": _label(row, about["task"])},
        {"about": "Verified", "text": _verified(row)},
    ]
    if math.isfinite(row["outlier"]):
        found.append(
            {
                "about": "Unusual",
                "text": f"It is more unusual than {percent(min(row['outlier'], 0.99))} of the training instances.",
            }
        )
    return found


def _effect(score: float) -> str:
    if not math.isfinite(score) or score == 0:
        return "By the estimate, the validation loss would be the same without it."
    if score < 0:
        return f"Without it, the mean validation loss would fall by about {amount(score)}: it makes the model worse."
    return f"Without it, the mean validation loss would rise by about {amount(score)}: it helps the model."


def _confidence(row: Any, runs: int) -> str:
    if runs < 2:
        return "It was estimated from one training run only; another seed could say something else."
    times = int(row["harmful_in"])
    said = f"It does harm in {times} of {runs} training runs"
    varies = f"from run to run the estimate varies by {amount(row['spread'])}"
    if times not in (0, runs):
        return f"{said}, so the runs disagree and it may be chance; {varies}."
    more = (
        ""
        if abs(row["score"]) > row["spread"]
        else ", more than the estimate itself, so its size is uncertain"
    )
    return f"{said}: all runs agree; {varies}{more}."


def _label(row: Any, task: str) -> str:
    label, prediction = row["label"], row["prediction"]
    if task == "regression":
        return f"Its value is {label}; the models predict {prediction}."
    sure = f" with {percent(row['probability'])}" if math.isfinite(row["probability"]) else ""
    often = (
        f"; {percent(row['agreement'])} of the runs agree on that"
        if math.isfinite(row["agreement"])
        else ""
    )
    if label == prediction:
        return f"Its label is {label}, and the models say so too{sure}{often}."
    own = (
        f" They give its own label {percent(row['label_probability'])}."
        if math.isfinite(row["label_probability"])
        else ""
    )
    return f"Its label is {label}, but the models say {prediction}{sure}{often}.{own}"


def _verified(row: Any) -> str:
    true, score = row["verified"], row["score"]
    if not math.isfinite(true):
        return "Not checked by retraining; the effect is an estimate."
    moved = (
        "stayed the same" if true == 0 else f"{'fell' if true < 0 else 'rose'} by {amount(true)}"
    )
    ending = "in the direction of the estimate" if true * score > 0 else "unlike the estimate"
    return f"The first run was trained again without it: its validation loss {moved}, {ending} (which is the mean over runs)."


def percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"


def amount(value: float) -> str:
    """Two digits that say something, without a sign."""
    value = float(f"{abs(value):.1e}")  # 0.0000999 is 0.00010
    if value == 0 or not math.isfinite(value):
        return "0"
    if value < 1e-5:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}"


def _whole(listing: Listing, id: int, unusual: dict[str, str]) -> dict[str, Any]:
    content = listing.project.content.loc[id]
    if listing.layout == "text":
        return {"text": str(content["text"])[:_LONGEST_TEXT]}
    return {
        "fields": [
            [str(name), plain(value), unusual.get(str(name))] for name, value in content.items()
        ]
    }


def _hurt(listing: Listing, id: int, change: float, verified: Any = None) -> dict[str, Any]:
    """verified: whether the change was found by retraining, or the change that was found."""
    if isinstance(verified, (int, float)) and not isinstance(verified, bool):
        change, verified = verified, True
    return _beside(listing, "validation", int(id)) | {
        "change": number(change),
        "verified": bool(verified),
    }


def _beside(listing: Listing, part: str, id: int) -> dict[str, Any]:
    """Another instance, briefly."""
    project = listing.project
    table = project.content if part == "train" else project.validation
    names = ("source", "label") if part == "train" else (" source", " label")
    if id not in table.index:
        return {
            "id": id,
            "part": part,
            "source": f"{part} {id}",
            "label": "",
            "brief": "It is not in this folder any more.",
        }
    row = table.loc[id]
    source, label = (project.instances.loc[id] if part == "train" else row)[list(names)]
    columns = [name for name in table.columns if name not in (" source", " label", "path")]
    if listing.layout == "text":
        text = str(row["text"])
        brief = text[:_TEXT_BESIDE] + (" …" if len(text) > _TEXT_BESIDE else "")
    else:
        brief = ", ".join(
            f"{name} {plain(row[name])}" for name in columns if plain(row[name]) is not None
        )
    return {
        "id": id,
        "part": part,
        "source": str(source),
        "label": str(label),
        "brief": brief[: 2 * _TEXT_BESIDE],
    }
