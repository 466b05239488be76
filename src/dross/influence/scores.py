"""Scores: one number per training instance, the estimated query(without z_j) - query(with z_j).

With a loss query a negative score means that the loss would fall without the instance: it is
harmful. A positive score means that it is helpful.
"""

import csv
import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._checks import check_installed, check_whole
from .._figures import open_axes, plot_ranked
from .._io import break_seal, seal, write_bytes
from .._text import paragraph, table
from ..data.fingerprint import digest_tensors
from ..errors import CorruptFile, InvalidInput

if TYPE_CHECKING:
    import pandas

_FORMATS = (".parquet", ".csv", ".safetensors")
_SHOWN = 5  # rows in a notebook
_DIGEST = "digest"  # of the numbers, in the files that carry one
WILD_GROWTH = 12.0  # of the adjoint: above it, first order does not follow a run
# what every file says about the scores; older files lack the sketch of the query
_NEEDED = ("query", "first_epoch", "at", "hessian", "details")


@dataclass(frozen=True)
class Scores:
    """One number per training instance: the estimated change of a query without it.

    With a loss query a negative score means that the loss would fall without the instance: it is
    harmful. Made by `Run.influence` and by the estimators.

        scores = run.influence(dross.mean_loss((X_val, y_val)))
        scores.values                # float64 [N]
        scores.most_harmful(10)      # ids, the most harmful first
        scores.save("scores.csv")

    The N instances are those of the training set, by their index. A query of Q values has Q rows
    of scores. E is the number of epochs that were retraced.
    """

    values: np.ndarray  # float64 [N], or [Q, N] for a vector query
    by_epoch: np.ndarray  # float64 [E, N], or [Q, E, N]: each epoch's part; they add up to values
    query: str = "query"  # its name
    first_epoch: int = 0  # the epoch that by_epoch begins with
    at: int = 0  # after how many steps the model was asked
    hessian: bool = True  # False: the Hessian term was left out
    details: dict[str, Any] = field(default_factory=dict)  # what a retrace or an estimator adds
    query_sketch: list[float] | None = None  # of what was asked (query.py), where it is known

    def __post_init__(self):
        if self.values.ndim not in (1, 2) or self.by_epoch.ndim != self.values.ndim + 1:
            raise InvalidInput(
                f"values must be [N] or [Q, N], and by_epoch has one axis more; found "
                f"{self.values.shape} and {self.by_epoch.shape}."
            )

    def __len__(self) -> int:
        return self.values.shape[-1]

    def __repr__(self) -> str:
        shape = f"{len(self):,} instances"
        worst = ""
        if self.values.ndim == 1:
            for j in self.most_harmful(1):
                worst = f", most harmful {j} ({self.values[j]:+.2e})"
        else:
            shape = f"{len(self.values)} queries x {shape}"
        epochs = self.by_epoch.shape[-2]
        length = f"{epochs} epoch{'' if epochs == 1 else 's'}"
        doubt = "; do not rely on them, see .trust" if self._is_wild else ""
        return f"<Scores of {shape} for {self.query}, {length}{worst}{doubt}>"

    @property
    def _is_wild(self) -> bool:
        return self.details.get("adjoint_growth", 0.0) > WILD_GROWTH

    @property
    def trust(self) -> str | None:
        """How far the scores can be trusted, judged from the run alone. None: nothing is known.

        `Run.verify` measures it by retraining.
        """
        growth = self.details.get("adjoint_growth")
        return None if growth is None else describe_growth(growth)

    def _repr_html_(self) -> str:
        """In a notebook: the extremes, or where there are several queries, a row of each."""
        title = paragraph(repr(self).strip("<>"))
        title += paragraph(self.trust) if self.trust else ""
        if self.values.ndim == 1:
            pairs = zip(self.most_harmful(_SHOWN).tolist(), self.most_helpful(_SHOWN).tolist())
            rows = [(a, f"{self.values[a]:+.3e}", b, f"{self.values[b]:+.3e}") for a, b in pairs]
            return title + table(("most harmful", "score", "most helpful", "score"), rows)
        rows = []
        for q, values in enumerate(self.values[: 2 * _SHOWN]):
            low, high = self.most_harmful(1, q)[0], self.most_helpful(1, q)[0]
            ends = (low, f"{values[low]:+.3e}", high, f"{values[high]:+.3e}")
            rows.append((q, f"{(values < 0).mean():.0%}", *ends))
        headers = ("query", "harmful", "most harmful", "score", "most helpful", "score")
        return title + table(headers, rows)

    def plot(self, query: int | None = None, *, ax: Any = None) -> Any:
        """Plot the scores from the most harmful to the most helpful.

        Arguments:
            query: of which query, where there are several.
            ax: matplotlib axes to draw on; new ones by default.

        Returns:
            The axes.

        Raises:
            InvalidInput: where there are several queries and `query` names none of them, or matplotlib
                is not installed.
        """
        ax, order = open_axes(ax), self._order(query)
        plot_ranked(ax, np.atleast_2d(self.values)[query or 0][order])
        ax.set_title(f"{self.query}, {len(self):,} instances", parse_math=False)
        return ax

    def most_harmful(self, m: int = 10, query: int | None = None) -> np.ndarray:
        """The ids of the m lowest scores, lowest first.

        Arguments:
            m: how many.
            query: of which query, where there are several.

        Returns:
            int64 [m], fewer where there are fewer instances.

        Raises:
            InvalidInput: where there are several queries and `query` names none of them.
        """
        return self._order(query)[: _check_count(m)]

    def most_helpful(self, m: int = 10, query: int | None = None) -> np.ndarray:
        """The ids of the m highest scores, highest first.

        Arguments, Returns, Raises: as for `most_harmful`.
        """
        return self._order(query)[::-1][: _check_count(m)]

    def summary(self) -> dict[str, float]:
        """A few numbers that describe the scores, of all queries together.

        Returns:
            `lowest`, `mean` and `highest`, and `harmful`: the share that is below 0. Nothing where
            there are no instances.
        """
        if not self.values.size:
            return {}
        return {
            "lowest": float(self.values.min()),
            "mean": float(self.values.mean()),
            "highest": float(self.values.max()),
            "harmful": float((self.values < 0).mean()),
        }

    def last_epochs(self, epochs: int) -> "Scores":
        """The scores that a retrace of only the last epochs would have given.

        Arguments:
            epochs: how many.

        Returns:
            Scores of the same instances and queries.

        Raises:
            InvalidInput: where fewer epochs were retraced.
        """
        if not 1 <= epochs <= self.by_epoch.shape[-2]:
            raise InvalidInput(f"epochs must be 1 to {self.by_epoch.shape[-2]}, not {epochs}.")
        part = self.by_epoch[..., -epochs:, :]
        first = self.first_epoch + self.by_epoch.shape[-2] - epochs
        return replace(self, values=part.sum(-2), by_epoch=part, first_epoch=first)

    def to_frame(self) -> "pandas.DataFrame":
        """A table with one row per instance.

        Returns:
            Columns id, score (score_0, score_1, ... for several queries), and the part of each
            epoch: epoch_0, ... (score_0_epoch_0, ...).

        Raises:
            InvalidInput: where pandas is not installed.
        """
        check_installed("to_frame", "pandas")
        import pandas

        return pandas.DataFrame(self._columns())

    def save(self, path: str | Path) -> Path:
        """Write the scores to a file. Every digit is kept.

        Arguments:
            path: ends in .parquet, .csv or .safetensors.

        Returns:
            The path.

        Raises:
            InvalidInput: for another ending.
            DrossError: where the file cannot be written.
        """
        path = _check_path(path)
        encode = {".parquet": self._to_parquet, ".csv": self._to_csv}
        write_bytes(path, encode.get(path.suffix, self._to_safetensors)())
        return path

    @staticmethod
    def load(path: str | Path) -> "Scores":
        """Read scores that `save` has written.

        Arguments:
            path: ends in .parquet, .csv or .safetensors.

        Returns:
            The same scores, to the last digit.

        Raises:
            InvalidInput: where there is no such file.
            CorruptFile: where the file does not hold scores, or not those that were saved: a
                .safetensors file carries their digest.
        """
        path = _check_path(path)
        try:
            if path.suffix == ".safetensors":
                from safetensors import safe_open

                with safe_open(path, "numpy") as file:
                    about = json.loads(file.metadata()["dross"])
                    arrays = {name: file.get_tensor(name) for name in ("values", "by_epoch")}
                _check_digest(arrays, about)
                return _build(arrays["values"], arrays["by_epoch"], about)
            if path.suffix == ".parquet":
                check_installed("A Parquet file", "pandas", "pyarrow")
                import pandas

                frame = pandas.read_parquet(path)
                columns = {str(name): frame[name].to_numpy() for name in frame}
                return _from_columns(columns, frame.attrs["dross"])
            with open(path, newline="", encoding="utf-8") as file:
                about = json.loads(file.readline().removeprefix("# "))
                names, *rows = csv.reader(file)
            table = np.array(rows, dtype=np.float64).reshape(-1, len(names))
            return _from_columns(dict(zip(names, table.T)), about)
        except FileNotFoundError:
            raise InvalidInput(f"There are no scores at {path}.") from None
        except InvalidInput:
            raise
        except Exception as error:  # a file that is not ours can fail anywhere inside three parsers
            raise CorruptFile(f"{path} does not hold scores written by dross ({error}).") from None

    def _order(self, query: int | None) -> np.ndarray:
        """The ids by their scores, lowest first."""
        if self.values.ndim == 1:
            if query not in (None, 0):
                raise InvalidInput(f"These are the scores of one query; there is no query {query}.")
            return np.argsort(self.values, kind="stable")
        if query is None or not 0 <= query < len(self.values):
            last = len(self.values) - 1
            raise InvalidInput(
                f"These are the scores of {len(self.values)} queries: say which, query=0..{last}."
            )
        return np.argsort(self.values[query], kind="stable")

    def _to_parquet(self) -> bytes:
        check_installed("A Parquet file", "pandas", "pyarrow")
        frame = self.to_frame()
        frame.attrs = {"dross": self._about()}
        return frame.to_parquet()

    def _to_csv(self) -> bytes:
        text, columns = io.StringIO(newline=""), self._columns()
        text.write(f"# {json.dumps(self._about())}\n")
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values())))
        return text.getvalue().encode()

    def _to_safetensors(self) -> bytes:
        from safetensors.numpy import save

        arrays = {"values": self.values, "by_epoch": np.ascontiguousarray(self.by_epoch)}
        about = seal(self._about() | {_DIGEST: _digest(arrays)})
        return save(arrays, {"dross": json.dumps(about)})

    def _columns(self) -> dict[str, np.ndarray]:
        columns, epochs = {"id": np.arange(len(self))}, self.by_epoch.shape[-2]
        several = self.values.ndim == 2
        names = [f"score_{q}" for q in range(len(self.values))] if several else ["score"]
        columns |= dict(zip(names, np.atleast_2d(self.values)))
        by_epoch = self.by_epoch if several else self.by_epoch[None]
        for name, rows in zip(names, by_epoch):
            prefix = f"{name}_" if several else ""
            columns |= {f"{prefix}epoch_{e + self.first_epoch}": rows[e] for e in range(epochs)}
        return columns

    def _about(self) -> dict[str, Any]:
        names = (*_NEEDED, "query_sketch")
        return {name: getattr(self, name) for name in names} | {"shape": list(self.by_epoch.shape)}


def describe_growth(growth: float) -> str:
    """What the growth of a small change during a run says about the scores.

    Of 18 runs that magnified it more than 12 times, none had scores that ranked random subsets as
    retraining does (rank correlation at most 0.51). Less growth does not prove the opposite.
    docs/results/language-models.md has the runs.

    Arguments:
        growth: the length of the adjoint before the first step, divided by that after the last.
    """
    times = f"{growth:,.0f}" if growth >= 10 else f"{growth:.1f}"
    if growth > WILD_GROWTH:
        return (
            f"By its end the run magnifies a small change {times} times. In such runs, scores say "
            "little about what retraining would do. Lower the rate, or train for fewer steps."
        )
    return (
        f"By its end the run magnifies a small change {times} times, so the scores may be "
        "reliable. Run.verify measures whether they are."
    )


def _check_count(m: int) -> int:
    if check_whole(m, "m") < 0:
        raise InvalidInput(f"m must not be negative, but it is {m}.")
    return m


def _check_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise InvalidInput(f"{path} must end in one of {', '.join(_FORMATS)}.")
    return path


def _digest(arrays: dict[str, np.ndarray]) -> str:
    return digest_tensors({name: torch.from_numpy(array) for name, array in arrays.items()})


def _check_digest(arrays: dict[str, np.ndarray], about: dict) -> None:
    """Raise ValueError if a bit is not as it was; files of earlier versions have no digest."""
    content = break_seal(about)
    if content is None or content.get(_DIGEST, _digest(arrays)) != _digest(arrays):
        raise ValueError("its digest differs")


def _build(values: np.ndarray, by_epoch: np.ndarray, about: dict) -> Scores:
    known = {name: about[name] for name in _NEEDED}
    return Scores(values, by_epoch, **known, query_sketch=about.get("query_sketch"))


def _from_columns(columns: dict[str, np.ndarray], about: dict) -> Scores:
    is_score = lambda name: name.startswith("score") and "epoch" not in name
    scores = [column for name, column in columns.items() if is_score(name)]
    epochs = [column for name, column in columns.items() if "epoch_" in name]
    shape, values = about["shape"], np.asarray(scores, dtype=np.float64)
    by_epoch = np.asarray(epochs, dtype=np.float64).reshape(shape)
    return _build(values[0] if len(shape) == 2 else values, by_epoch, about)
