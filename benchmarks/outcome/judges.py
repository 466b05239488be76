"""The user's own models: what an ordinary scikit-learn model gains from a cleaned copy."""

import numpy as np
import pandas as pd
from sets import DataSet
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def encode(data: DataSet, train: np.ndarray):
    """The inputs of all instances as a matrix; what is fitted is fitted on `train`."""
    if data.kind == "images":
        return data.x.reshape(len(data.x), -1).astype(np.float32) / 255
    if data.kind == "text":
        texts = data.x["text"]
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=20_000)
        return vectorizer.fit(texts.iloc[train]).transform(texts)
    numbers = [name for name in data.x if pd.api.types.is_numeric_dtype(data.x[name])]
    others = [name for name in data.x if name not in numbers]
    transformer = make_column_transformer(
        (StandardScaler(), numbers),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=5, sparse_output=False), others),
    )
    columns = data.x.assign(**{name: data.x[name].astype(str) for name in others})
    return transformer.fit(columns.iloc[train]).transform(columns).astype(np.float32)


_WIDE = 200  # columns, from which on a forest is used: boosting would take minutes


def models(data: DataSet, columns: int) -> dict:
    """Two models that somebody would use for such data, encoded in so many columns."""
    if data.task == "regression":
        return {"linear": Ridge(), "trees": HistGradientBoostingRegressor(random_state=0)}
    linear = LogisticRegression(max_iter=300)
    if columns > _WIDE:
        return {"linear": linear, "trees": RandomForestClassifier(100, random_state=0)}
    return {"linear": linear, "trees": HistGradientBoostingClassifier(random_state=0)}


def error(model, x, y, kept, labels, test) -> float:
    """The test error of a model that learnt `labels` [N] of the instances `kept`."""
    from sklearn.base import clone

    fitted = clone(model).fit(x[kept], labels[kept])
    predicted = fitted.predict(x[test])
    if y.dtype.kind == "f":
        return float(np.abs(predicted - y[test]).mean())
    return float((predicted != y[test]).mean())
