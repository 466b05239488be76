"""The edited data in the types that they were given in."""

from pathlib import Path
from typing import Any

import numpy as np

from .source import Frame, import_pandas


def give_back(frame: Frame, label: str, about: dict[str, Any], pixels: Path) -> Any:
    """A frame with its label column where that was given; else the pair (X, y).

    Arguments:
        frame: The rows that are left, as a project's file keeps them.
        label: The column of labels.
        about: How they were given: `Request.given`.
        pixels: The array of pictures, where there is one.
    """
    categories = [*about.get("categories", []), *([label] if "y_type" in about else [])]
    for name in categories:  # Parquet keeps only those of texts
        if str(frame[name].dtype) != "category":
            frame[name] = frame[name].astype("category")
    if about.get("y") == "column":
        return _restore_frame(frame, about)
    y = _restore_labels(frame[label], about)
    if about["x"] == "frame":
        return _restore_frame(frame.drop(columns=[label]), about), y
    if "pixels" in about:
        places = [int(path.rpartition("/")[2]) for path in frame["path"]]
        x = np.load(pixels, allow_pickle=False)[places]
        x = np.moveaxis(x, 3, 1) if about["pixels"] == "first" else x
    else:
        x = _restore_array(frame.drop(columns=[label]), about)
    return _restore_container(x, about), y


def _restore_frame(frame: Frame, about: dict[str, Any]) -> Frame:
    names = about.get("index", [None])
    if frame.index.nlevels == len(names):
        frame.index = frame.index.set_names(names)
    if about.get("columns") == "whole":
        frame.columns = [int(name) for name in frame.columns]
    return frame


def _restore_labels(labels: Any, about: dict[str, Any]) -> Any:
    kind = about.get("y")
    if kind == "list":
        return labels.tolist()
    if kind == "series":
        return labels
    array = labels.to_numpy()
    if kind == "tensor":
        return _make_tensor(array, about["y_tensor"])
    return array


def _restore_array(frame: Frame, about: dict[str, Any]) -> np.ndarray:
    array = frame.to_numpy()
    dtype = np.dtype(about["dtype"])
    if dtype.kind != "U":  # texts are kept as objects: numpy would cut a longer new one
        array = array.astype(dtype)
    return array[:, 0] if about["dimensions"] == 1 else array


def _make_tensor(array: np.ndarray, name: str) -> Any:
    """name: of its type, as the project has it."""
    import torch

    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is not a type of tensor")
    return torch.from_numpy(np.ascontiguousarray(array).copy()).to(dtype)


def _restore_container(x: np.ndarray, about: dict[str, Any]) -> Any:
    kind = about["x"]
    if kind == "list":
        return x.tolist()
    if kind == "series":
        return import_pandas().Series(x)
    if kind == "tensor":
        return _make_tensor(x, about["tensor"])
    if kind == "sparse":
        from scipy import sparse

        made = (sparse.csr_array if about["array"] else sparse.csr_matrix)(x)
        return made.asformat(about["format"])
    return x
