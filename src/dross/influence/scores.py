"""Scores: one number per training instance, `score_j` = estimated query(without z_j) - query(with z_j).

With a loss query a negative score means that the loss would fall without the instance: it is harmful. Positive: helpful.
"""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadInput, TapeDamaged
from ..support.atomic_files import write_bytes

if TYPE_CHECKING:
    import pandas

_FORMATS = (".parquet", ".csv", ".safetensors")


@dataclass(frozen=True)
class Scores:
    values: np.ndarray  # float64 [N], or [Q, N] for a vector query
    by_epoch: (
        np.ndarray
    )  # float64 [E, N], or [Q, E, N]: each epoch's own contribution; they add up to the values
    query: str = "query"
    first_epoch: int = 0  # the epoch that by_epoch begins with
    at: int = 0  # after how many steps the model was asked
    hessian: bool = True
    details: dict[str, Any] = field(default_factory=dict)  # what an estimator says of itself
    seed_sketch: list[float] | None = None  # of what was asked (query.py), where it is known

    def __post_init__(self):
        if self.values.ndim not in (1, 2) or self.by_epoch.ndim != self.values.ndim + 1:
            raise BadInput(
                f"Scores are [N] or [Q, N] with one axis more by epoch, not {self.values.shape}, {self.by_epoch.shape}."
            )

    def __len__(self) -> int:
        return self.values.shape[-1]

    def __repr__(self) -> str:
        shape = (
            f"{len(self):,} instances"
            if self.values.ndim == 1
            else f"{len(self.values)} queries x {len(self):,} instances"
        )
        worst = ""
        if self.values.ndim == 1:
            j = self.most_harmful(1)[0]
            worst = f", most harmful {j} ({self.values[j]:+.2e})"
        return f"<Scores of {shape} for {self.query}, {self.by_epoch.shape[-2]} epochs{worst}>"

    def most_harmful(self, m: int = 10, query: int | None = None) -> np.ndarray:
        """The ids of the m lowest scores, lowest first."""
        return self._ranked(query)[: self._checked(m)]

    def most_helpful(self, m: int = 10, query: int | None = None) -> np.ndarray:
        """The ids of the m highest scores, highest first."""
        return self._ranked(query)[::-1][: self._checked(m)]

    def last_epochs(self, epochs: int) -> "Scores":
        """What a retrace of only the last so many epochs would have said."""
        if not 1 <= epochs <= self.by_epoch.shape[-2]:
            raise BadInput(f"There are {self.by_epoch.shape[-2]} epochs, not {epochs}.")
        part = self.by_epoch[..., -epochs:, :]
        skipped = self.by_epoch.shape[-2] - epochs
        return Scores(
            part.sum(-2),
            part,
            self.query,
            self.first_epoch + skipped,
            self.at,
            self.hessian,
            self.details,
            self.seed_sketch,
        )

    def to_frame(self) -> "pandas.DataFrame":
        """A table with one row per instance: id, score (score_0, ... for several queries), epoch_0, ..."""
        try:
            import pandas
        except ImportError:
            raise BadInput("to_frame needs pandas: pip install pandas pyarrow.") from None
        return pandas.DataFrame(self._columns())

    def save(self, path: str | Path) -> Path:
        """Write .parquet, .csv or .safetensors (all three keep every digit)."""
        path = _checked_path(path)
        if path.suffix == ".parquet":
            frame = self.to_frame()
            frame.attrs = {"dross": self._about()}
            raw = frame.to_parquet()
        elif path.suffix == ".csv":
            columns, text = self._columns(), io.StringIO(newline="")
            text.write(f"# {json.dumps(self._about())}\n")
            writer = csv.writer(text)
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values())))
            raw = text.getvalue().encode("utf-8")
        else:
            from safetensors.numpy import save

            arrays = {"values": self.values, "by_epoch": np.ascontiguousarray(self.by_epoch)}
            raw = save(arrays, {"dross": json.dumps(self._about())})
        write_bytes(path, raw)
        return path

    @staticmethod
    def load(path: str | Path) -> "Scores":
        path = _checked_path(path)
        try:
            if path.suffix == ".safetensors":
                from safetensors import safe_open

                with safe_open(path, "numpy") as file:
                    about = json.loads(file.metadata()["dross"])
                    return _restored(file.get_tensor("values"), file.get_tensor("by_epoch"), about)
            if path.suffix == ".parquet":
                import pandas

                frame = pandas.read_parquet(path)
                return _from_columns(
                    {name: frame[name].to_numpy() for name in frame}, frame.attrs["dross"]
                )
            with open(path, newline="", encoding="utf-8") as file:
                about = json.loads(file.readline().removeprefix("# "))
                names, *rows = csv.reader(file)
            return _from_columns(
                dict(zip(names, np.array(rows, dtype=np.float64).reshape(-1, len(names)).T)), about
            )
        except FileNotFoundError:
            raise BadInput(f"There are no scores at {path}.") from None
        except Exception as error:  # a file that is not ours can fail anywhere inside three parsers
            raise TapeDamaged(f"{path} does not hold scores written by dross ({error}).") from None

    def _ranked(self, query: int | None) -> np.ndarray:
        if self.values.ndim == 1:
            if query not in (None, 0):
                raise BadInput(f"These are the scores of one query; there is no query {query}.")
            return np.argsort(self.values, kind="stable")
        if query is None or not 0 <= query < len(self.values):
            raise BadInput(
                f"These are the scores of {len(self.values)} queries: say which, query=0..{len(self.values) - 1}."
            )
        return np.argsort(self.values[query], kind="stable")

    def _checked(self, m: int) -> int:
        if m < 0:
            raise BadInput(f"m must not be negative, but it is {m}.")
        return m

    def _columns(self) -> dict[str, np.ndarray]:
        columns = {"id": np.arange(len(self))}
        epochs = self.by_epoch.shape[-2]
        if self.values.ndim == 1:
            columns["score"] = self.values
            return columns | {
                f"epoch_{e + self.first_epoch}": self.by_epoch[e] for e in range(epochs)
            }
        columns |= {f"score_{q}": row for q, row in enumerate(self.values)}
        return columns | {
            f"score_{q}_epoch_{e + self.first_epoch}": self.by_epoch[q, e]
            for q in range(len(self.values))
            for e in range(epochs)
        }

    def _about(self) -> dict[str, Any]:
        kept = {
            name: getattr(self, name)
            for name in ("query", "first_epoch", "at", "hessian", "details", "seed_sketch")
        }
        return kept | {"shape": list(self.by_epoch.shape)}


def _checked_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise BadInput(f"{path}: scores are kept as {', '.join(_FORMATS)}.")
    return path


def _restored(values: np.ndarray, by_epoch: np.ndarray, about: dict) -> Scores:
    return Scores(
        values,
        by_epoch,
        about["query"],
        about["first_epoch"],
        about["at"],
        about["hessian"],
        about["details"],
        about.get("seed_sketch"),
    )


def _from_columns(columns: dict[str, np.ndarray], about: dict) -> Scores:
    scores = [
        column
        for name, column in columns.items()
        if name.startswith("score") and "epoch" not in name
    ]
    epochs = [column for name, column in columns.items() if "epoch_" in name]
    shape = about["shape"]
    values = np.asarray(scores, dtype=np.float64)
    return _restored(
        values[0] if len(shape) == 2 else values,
        np.asarray(epochs, dtype=np.float64).reshape(shape),
        about,
    )
