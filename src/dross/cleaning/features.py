"""What models learn of each instance: the inputs as they were read, features, or both."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..support.arguments import fit_together
from .feature_cache import digest_features, read_features
from .own_features import standardize, usual_length
from .split_dataset import PreparedData
from .text import SCALE

AS_READ, FEATURES, BOTH = "as read", "features", "both"
_KINDS = {"inputs": str, "backbone": str | None, "digest": str | None}


@dataclass(frozen=True)
class Encoding:
    """How instances become inputs, as a project keeps it."""

    inputs: str = AS_READ  # AS_READ, FEATURES or BOTH
    backbone: str | None = None
    digest: str | None = None  # of the features

    @staticmethod
    def from_json(said: Any) -> "Encoding | None":
        """What a project says; None if it is damaged. Earlier versions said nothing."""
        if said is None or said == {}:
            return Encoding()
        if not fit_together(said, _KINDS) or set(said) != set(_KINDS):
            return None
        found = Encoding(**said)
        needs_features = found.inputs in (FEATURES, BOTH)
        whole = found.backbone is not None and found.digest is not None
        return found if found.inputs == AS_READ or (needs_features and whole) else None


def encode(
    data: PreparedData, inputs: str, backbone: str | None = None, features: Tensor | None = None
) -> PreparedData:
    """The data with the chosen inputs; `encoding` says what they are.

    Arguments:
        data: As `prepare` made them.
        inputs: AS_READ, FEATURES or BOTH.
        backbone: Which one made the features.
        features: Of all instances, in the order of the source, [N, d].
    """
    if inputs == AS_READ or features is None:
        return replace(data, encoding=asdict(Encoding()))
    known = asdict(Encoding(inputs, backbone, digest_features(features)))
    rows = standardize(features, data.parts["train"])
    own = {part: rows[torch.from_numpy(ids)] for part, ids in data.parts.items()}
    if inputs == FEATURES:
        return replace(data, x=own, encoder=None, encoding=known)
    size = SCALE / 2 / usual_length(features.shape[1])  # half as long as the vectors of words
    joined = {part: torch.cat([data.x[part], size * own[part]], dim=1) for part in own}
    return replace(data, x=joined, encoding=known)


def encode_again(
    data: PreparedData, encoding: Encoding, folder: Path, data_digest: str
) -> PreparedData:
    """The data with the inputs that a project's models learnt, from what it has kept.

    Raises:
        CorruptFile: the features are missing or damaged.
    """
    if encoding.backbone is None or encoding.digest is None:
        return encode(data, AS_READ)
    count = len(data.source)
    features = read_features(folder, encoding.backbone, data_digest, count, encoding.digest)
    return encode(data, encoding.inputs, encoding.backbone, features)
