"""Texts as tf-idf vectors, and the words that speak for a label."""

from typing import Any

import numpy as np
import torch

from ...errors import BadInput
from .frames import Frame

_MOST_BYTES = 400 << 20


class TextEncoder:
    def __init__(self, content: Frame, most_words: int = 4000):
        from sklearn.feature_extraction.text import TfidfVectorizer

        fitting = max(100, _MOST_BYTES // (4 * max(len(content), 1)))
        self.vectorizer = TfidfVectorizer(
            max_features=min(most_words, fitting), sublinear_tf=True, min_df=2
        )
        try:
            self.vectorizer.fit(content["text"].fillna(""))
        except ValueError:
            raise BadInput(
                "The texts have no word that occurs twice: there is nothing to learn from. Is it the right column?"
            ) from None
        self.words = self.vectorizer.get_feature_names_out()

    def __call__(self, content: Frame) -> torch.Tensor:
        # tf-idf vectors have length 1; scaled up so that the usual rates suit them
        vectors: Any = self.vectorizer.transform(content["text"].fillna(""))
        return torch.from_numpy(4 * vectors.toarray().astype(np.float32))
