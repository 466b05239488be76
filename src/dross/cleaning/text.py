"""Texts as tf-idf vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from ..errors import InvalidInput
from .modality import Frame, Modality

_MAX_WORDS = 4000
_MIN_WORDS = 100
_MAX_BYTES = 400 << 20  # of the vectors of all texts together
SCALE = 4  # tf-idf vectors have length 1; longer ones suit the usual learning rates


def _load_item(content: Frame, root: Path | None) -> Callable[[int], Any]:
    return content["text"].fillna("").astype(str).tolist().__getitem__


TEXT = Modality(
    "text",
    labels="annotated",
    as_read="tf-idf",
    backbone="wordllama",
    has_text=True,
    load_item=_load_item,
)


class TextEncoder:
    """Turns the column `text` into tf-idf vectors, float32 [N, words]."""

    def __init__(self, content: Frame, max_words: int = _MAX_WORDS):
        affordable = max(_MIN_WORDS, _MAX_BYTES // (4 * max(len(content), 1)))
        self.vectorizer = TfidfVectorizer(
            max_features=min(max_words, affordable), sublinear_tf=True, min_df=2
        )
        try:
            self.vectorizer.fit(content["text"].fillna(""))
        except ValueError:
            raise InvalidInput(
                "No word occurs in more than one text, so there is nothing to learn from. Check "
                "that this is the right column."
            ) from None
        self.words = self.vectorizer.get_feature_names_out()

    def __call__(self, content: Frame) -> torch.Tensor:
        """Encode texts; words that do not occur in the training set are left out."""
        vectors: Any = self.vectorizer.transform(content["text"].fillna(""))
        return torch.from_numpy(SCALE * vectors.toarray().astype(np.float32))
