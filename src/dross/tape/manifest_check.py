"""A manifest that cannot be edited, cut or damaged without being noticed.

Every commit seals the manifest with a digest of itself. What a manifest says is also checked for
its types and for whether its parts agree, because tapes of earlier versions have no digest.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.dataset import EVERYTHING, SAMPLE
from ..engine.precision import NARROW_NAMES, are_kernels, is_saved_autocast
from ..errors import CorruptFile

DIGEST = "digest"
_LARGEST = 2**63 - 1


def seal(manifest: dict) -> dict:
    """The manifest with a digest of all the rest of it."""
    return {**manifest, DIGEST: _digest(json.loads(json.dumps(manifest)))}


def check_manifest(manifest: dict, path: str) -> None:
    """Refuse a manifest that is incomplete or altered, or whose parts contradict each other.

    Arguments:
        manifest: as it was read.
        path: its name for a message.

    Raises:
        CorruptFile: it says which entry is wrong.
    """
    found = _find_fault(manifest)
    if found is None and DIGEST in manifest and manifest[DIGEST] != _digest(manifest):
        found = "its digest differs, so it has been changed since it was written"
    if found is not None:
        raise CorruptFile(
            f"{path} is damaged: {found}. Restore it from a copy, or record the run again."
        )


def _digest(manifest: dict) -> str:
    rest = {key: value for key, value in manifest.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# --- what each entry may be -----------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(check(each) for each in value)


def _may_be_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_bare_name(name: Any) -> bool:
    # also as Windows sees it: a tape is copied between machines
    bare = isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name
    return bare and Path(name).name == name and not re.search(r"[\\/:]", name)


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _are_shapes(value: Any) -> bool:
    """{name: [shape, type]}."""
    return isinstance(value, dict) and all(
        isinstance(each, list)
        and len(each) == 2
        and _is_list_of(_is_count)(each[0])
        and _is_text(each[1])
        for each in value.values()
    )


def _is_range_of_epochs(value: Any) -> bool:
    return _is_list_of(_is_count)(value) and len(value) == 2 and value[0] <= value[1]


def _has(**checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict)
        and all(key in value and check(value[key]) for key, check in checks.items())
    )


_TEXTS = _is_list_of(_is_text)
_FILE = {"bytes": _is_count, "sha256": _is_sha256}
_SEGMENT = {"first": _is_count, "steps": _is_count, "epochs": _is_range_of_epochs, **_FILE}
_HASHES = {"instances": _is_count, **_FILE}
_REQUIRED: dict[str, Callable[[Any], bool]] = {
    "id": _is_text,
    "foreign": _is_yes_or_no,
    "dross": _is_text,
    "torch": _is_text,
    "device": _is_text,
    "model": _has(
        **{"class": _is_text}, constants=_is_text, parameters=_are_shapes, buffers=_are_shapes
    ),
    "layout": _has(names=_TEXTS, group_sizes=_is_list_of(_is_count), moving=_TEXTS),
    "stochastic": _is_yes_or_no,
    "evaluated": _TEXTS,
    "unused": _TEXTS,
    "optimizer": _has(
        name=_is_text,
        flags=lambda value: isinstance(value, dict),
        columns=_TEXTS,
        any_momentum=_is_yes_or_no,
    ),
    "loss": _is_text,
    "penalty": _is_yes_or_no,
    "augment": _is_yes_or_no,
    "instances": _may_be_none(_is_count),
    "data": _may_be_none(_is_text),
    "seed": _is_whole,
    "planned": _may_be_none(_is_count),
    "steps": _is_count,
    "segments": lambda value: isinstance(value, list),
    "end": lambda value: isinstance(value, dict),
    "complete": _is_yes_or_no,
}
_OPTIONAL: dict[str, Callable[[Any], bool]] = {  # missing in tapes of earlier versions
    "keep": _is_text,
    "memory": _may_be_none(_is_count),
    "arithmetic": _is_text,
    "autocast": _may_be_none(is_saved_autocast),
    "inner_cast": _may_be_none(lambda value: value in list(NARROW_NAMES)),
    "kernels": are_kernels,
    "attention_gap": _may_be_none(lambda value: isinstance(value, (int, float))),
    "schedule": _may_be_none(_is_text),
    "data_digest": lambda value: value in (None, EVERYTHING, SAMPLE),
    "hashes": lambda value: isinstance(value, list),
    "held": _TEXTS,
    "average": lambda value: isinstance(value, dict),
    "shards": _is_count,
}


# --- faults, as the end of a sentence -------------------------------------------------------------


def _find_fault(manifest: dict) -> str | None:
    if missing := sorted(set(_REQUIRED) - set(manifest)):
        return f"it lacks {', '.join(missing)}"
    for key, check in {**_REQUIRED, **_OPTIONAL}.items():
        if key in manifest and not check(manifest[key]):
            return f"its entry '{key}' is {_show(manifest[key])}, which is not valid"
    files = [(f"segment {k}", _SEGMENT, each) for k, each in enumerate(manifest["segments"])]
    noted = manifest.get("hashes", [])
    files += [(f"file {k} of hashes", _HASHES, each) for k, each in enumerate(noted)]
    files += [("average", _FILE, manifest["average"])] if "average" in manifest else []
    for what, checks, entry in [*files, ("end", _FILE, manifest["end"])]:
        if fault := _find_fault_of_file(what, checks, entry):
            return fault
        if fault := _find_fault_of_shards(what, entry, manifest):
            return fault
    return (
        _find_fault_of_order(manifest)
        or _find_fault_of_end(manifest)
        or _find_fault_of_layout(manifest)
    )


def _find_fault_of_file(what: str, checks: dict, entry: Any) -> str | None:
    if not isinstance(entry, dict) or not _is_bare_name(entry.get("file")):
        named = entry.get("file") if isinstance(entry, dict) else entry
        return f"{what} names {_show(named)}, a file outside the tape or none at all"
    for key, check in checks.items():
        if key not in entry:
            return f"{what} ({entry['file']}) lacks '{key}'"
        if not check(entry[key]):
            return f"'{key}' of {what} ({entry['file']}) is {_show(entry[key])}, which is not valid"
    return None


def _find_fault_of_shards(what: str, entry: dict, manifest: dict) -> str | None:
    """Each segment and the end have a file of every rank, where ranks wrote the tape together."""
    others = entry.get("shards", [])
    if not isinstance(others, list):
        return f"'shards' of {what} is {_show(others)}, which is not valid"
    holds_states = what == "end" or what.startswith("segment")
    if holds_states and len(others) != max(1, manifest.get("shards", 1)) - 1:
        return f"{what} has {len(others)} shards besides its own, of {manifest.get('shards', 1)}"
    faults = (_find_fault_of_file(f"a shard of {what}", _FILE, other) for other in others)
    return next((fault for fault in faults if fault), None)


def _find_fault_of_order(manifest: dict) -> str | None:
    """The segments follow each other without a gap, from the first one to the last step."""
    entries, names, before = manifest["segments"], {manifest["end"]["file"]}, None
    expected = entries[0]["first"] if entries else 0
    if expected and "LastEpochs" not in manifest.get("keep", "LastEpochs"):
        return f"its first segment begins at step {expected}, but this run keeps all steps"
    for k, entry in enumerate(entries):
        if entry["first"] != expected or not entry["steps"]:
            return (
                f"segment {k} ({entry['file']}) has {entry['steps']} steps from step "
                f"{entry['first']} on; step {expected} is next"
            )
        if entry["file"] in names:
            return f"segment {k} names {entry['file']}, which another entry names, too"
        # the user's own loop may have restarted its count of epochs when it was continued
        if before is not None and not manifest["foreign"] and entry["epochs"][0] < before:
            return f"the epochs of segment {k} ({entry['file']}) come before the previous ones"
        names.add(entry["file"])
        expected, before = expected + entry["steps"], entry["epochs"][1]
    for k, entry in enumerate(manifest.get("hashes", [])):
        if entry["file"] in names:
            return f"file {k} of hashes is {entry['file']}, which another entry names, too"
        names.add(entry["file"])
    if manifest["steps"] != expected:
        return f"it says {manifest['steps']} steps, but its segments end at step {expected}"
    return None


def _find_fault_of_end(manifest: dict) -> str | None:
    steps, planned, end = manifest["steps"], manifest["planned"], manifest["end"]["file"]
    if (named := re.fullmatch(r"state-(\d{1,20})\.safetensors", end)) and int(named[1]) != steps:
        return f"its end is {end}, but it says {steps} steps"
    if planned is not None and (steps > planned or (manifest["complete"] and steps != planned)):
        done = "complete" if manifest["complete"] else "not complete"
        return f"it is {done} with {steps} steps of {planned} planned ones"
    return None


def _find_fault_of_layout(manifest: dict) -> str | None:
    shapes, layout = manifest["model"]["parameters"], manifest["layout"]
    strangers = [name for name in layout["names"] if name not in shapes]
    strangers += [name for name in layout["moving"] if name not in manifest["model"]["buffers"]]
    if strangers:
        return f"its layout names '{strangers[0]}', which its model does not have"
    sizes = (_count_numbers(shapes[name][0]) for name in layout["names"])
    if sum(sizes) != sum(layout["group_sizes"]):
        return "the sizes in its layout are not those of its model"
    return None


def _count_numbers(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
