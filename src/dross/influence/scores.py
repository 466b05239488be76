"""Scores: one number per training instance, the estimated query(without z_j) - query(with z_j).

With a loss query a negative score means that the loss would fall without the instance: it is
harmful. A positive score means that it is helpful.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._checks import check_whole
from .._figures import open_axes, plot_ranked
from .._text import paragraph, say_count, table
from ..data.sealed import read_tensors, write_tensors
from ..errors import InvalidInput
from ..replay.average import MODEL
from .query import Query, query_of_file

if TYPE_CHECKING:
    import pandas

_SHOWN = 5  # rows in a notebook
LARGEST_GROWTH = 12.0  # of the adjoint: above it, first order does not follow a run
_IN_FILES = ("weights", "first_epoch", "step", "hessian", "details")


@dataclass(frozen=True)
class Scores:
    """One number per training instance: the estimated change in a query without it.

    With a loss query a negative score means that the loss would fall without the instance: it is
    harmful. Made by `Run.influence`, by the estimators, and by `Run.scores` from your own numbers.

        scores = run.influence(dross.mean_loss((X_val, y_val)))
        scores.values                # float64 [N]; np.asarray(scores) is the same
        scores[3]                    # the score of instance 3
        scores.most_harmful(10)      # ids, the most harmful first
        scores.save("scores.safetensors")

    The N instances are those of the training set, by their index. A query of Q values has Q rows
    of scores. E is the number of epochs that were retraced. The score of an instance that no
    retraced step used is nan, and so is its part of an epoch that did not use it. Rankings put nan
    last.

    A score estimates whether an instance harms the query, not whether its label is wrong. For wrong
    labels see `Run.margins`; docs/explain/harm-or-mislabeled.md compares the two.
    """

    values: np.ndarray  # float64 [N], or [Q, N] for a vector query; nan if never used
    by_epoch: np.ndarray  # float64 [E, N], or [Q, E, N]: each epoch's part; values is their nansum
    query: Query  # the query whose change is estimated
    query_value: np.ndarray | None = None  # float64 [], or [Q]: the query's value for the model
    weights: str = MODEL  # "model" or "average": the weights on which the query was computed
    first_epoch: int = 0  # the epoch that by_epoch begins with
    step: int = 0  # the number of steps after which the model was queried
    hessian: bool = True  # False if the Hessian term was left out
    details: dict[str, Any] = field(default_factory=dict)  # details of the retrace or the estimator

    def __post_init__(self):
        if self.values.ndim not in (1, 2) or self.by_epoch.ndim != self.values.ndim + 1:
            raise InvalidInput(
                "values must be [N] or [Q, N], and by_epoch must have one more axis; found "
                f"{self.values.shape} and {self.by_epoch.shape}."
            )

    @staticmethod
    def of_query(
        by_epoch: np.ndarray, query: Query, query_value: torch.Tensor, **about: Any
    ) -> "Scores":
        """Scores of a query with a single value (a tensor []) or with Q values [Q].

        Arguments:
            by_epoch: each epoch's part [Q, E, N], with Q = 1 for one value.
            query: the query whose change is estimated.
            query_value: the query's value for the model.
            about: the other fields.
        """
        by_epoch = by_epoch if query_value.ndim else by_epoch[0]
        value = query_value.numpy()
        return Scores(_add_epochs(by_epoch), by_epoch, query, value, **about)

    def __len__(self) -> int:
        return self.values.shape[-1]

    def __getitem__(self, ids: Any) -> Any:
        """The scores of some instances.

        Arguments:
            ids: an id, a slice, a list of ids or a mask [N].

        Returns:
            A number or an array; with several queries an array whose first axis are the queries.

        Raises:
            InvalidInput: for anything else; for several queries see `values` [Q, N].
            IndexError: if there is no such instance.
        """
        if isinstance(ids, (str, tuple)) or ids is None or ids is Ellipsis:
            raise InvalidInput(
                f"Index scores by ids, such as scores[3] or scores[[3, 5]], not by {ids!r}. The "
                f"array of all scores is scores.values, of shape {list(self.values.shape)}."
            )
        return self.values[ids] if self.values.ndim == 1 else self.values[:, ids]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.T)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=True if copy is None else copy)

    def __repr__(self) -> str:
        shape = f"{len(self):,} instances"
        worst = ""
        if self.values.ndim == 1:
            for j in self.most_harmful(1):
                if not np.isnan(self.values[j]):
                    worst = f", most harmful {j} ({self.values[j]:+.2e})"
        else:
            shape = f"{len(self.values)} queries x {shape}"
        length = say_count(self.by_epoch.shape[-2], "epoch")
        doubt = "; do not rely on them (see .trust)" if self._is_doubtful else ""
        return f"<Scores of {shape} for {self.query.name}, {length}{worst}{doubt}>"

    @property
    def _is_doubtful(self) -> bool:
        return self.details.get("adjoint_growth", 0.0) > LARGEST_GROWTH

    @property
    def trust(self) -> str | None:
        """Whether the scores can be trusted, judged from the run alone; None if that is not known.

        `Run.verify` measures it by retraining.
        """
        growth = self.details.get("adjoint_growth")
        return None if growth is None else describe_growth(growth)

    def _repr_html_(self) -> str:
        """In a notebook: the extremes, or if there are several queries, a row of each."""
        title = paragraph(repr(self).strip("<>"))
        title += paragraph(self.trust) if self.trust else ""
        if self.values.ndim == 1:
            pairs = zip(self.most_harmful(_SHOWN).tolist(), self.most_helpful(_SHOWN).tolist())
            rows = [(a, f"{self.values[a]:+.3e}", b, f"{self.values[b]:+.3e}") for a, b in pairs]
            return title + table(("most harmful", "score", "most helpful", "score"), rows)
        rows = []
        for q, values in enumerate(self.values[: 2 * _SHOWN]):
            low = self.most_harmful(1, q)[0]
            high = self.most_helpful(1, q)[0]
            harmful = f"{(values < 0).sum() / max(1, (~np.isnan(values)).sum()):.0%}"
            rows.append((q, harmful, low, f"{values[low]:+.3e}", high, f"{values[high]:+.3e}"))
        headers = ("query", "harmful", "most harmful", "score", "most helpful", "score")
        return title + table(headers, rows)

    def plot(self, query: int | None = None, *, ax: Any = None) -> Any:
        """Plot the scores from the most harmful to the most helpful.

        Arguments:
            query: of which query, if there are several.
            ax: matplotlib axes to draw on; new ones by default.

        Returns:
            The axes.

        Raises:
            InvalidInput: if there are several queries and `query` names none of them, or matplotlib
                is not installed.
        """
        ax = open_axes(ax)
        values = np.atleast_2d(self.values)[query or 0][self._order(query)]
        plot_ranked(ax, values[~np.isnan(values)])
        ax.set_title(f"{self.query.name}, {len(self):,} instances", parse_math=False)
        return ax

    def most_harmful(self, m: int = 10, query: int | None = None) -> np.ndarray:
        """The ids of the m lowest scores, lowest first.

        Arguments:
            m: how many.
            query: of which query, if there are several.

        Returns:
            int64 [m], fewer if there are fewer instances. Those that were never used come last.

        Raises:
            InvalidInput: if there are several queries and `query` names none of them.
        """
        return self._order(query)[: _check_count(m)]

    def most_helpful(self, m: int = 10, query: int | None = None) -> np.ndarray:
        """The ids of the m highest scores, highest first.

        Arguments, Returns, Raises: as for `most_harmful`.
        """
        order = self._order(query)
        used = int(np.count_nonzero(~np.isnan(np.atleast_2d(self.values)[query or 0])))
        return np.concatenate([order[:used][::-1], order[used:]])[: _check_count(m)]

    def summary(self) -> dict[str, float]:
        """Summary statistics of the scores over all queries.

        Returns:
            `lowest`, `mean` and `highest`, and `harmful`: the share that is below 0, of the
            instances that were used. Nothing if there are none.
        """
        values = self.values[~np.isnan(self.values)]
        if not values.size:
            return {}
        return {
            "lowest": float(values.min()),
            "mean": float(values.mean()),
            "highest": float(values.max()),
            "harmful": float((values < 0).mean()),
        }

    def last_epochs(self, epochs: int) -> "Scores":
        """The scores that a retrace of only the last epochs would have computed.

        Arguments:
            epochs: how many.

        Returns:
            Scores of the same instances and queries.

        Raises:
            InvalidInput: if fewer epochs were retraced.
        """
        if not 1 <= epochs <= self.by_epoch.shape[-2]:
            raise InvalidInput(
                f"epochs must be between 1 and {self.by_epoch.shape[-2]}, not {epochs}."
            )
        part = self.by_epoch[..., -epochs:, :]
        first = self.first_epoch + self.by_epoch.shape[-2] - epochs
        return replace(self, values=_add_epochs(part), by_epoch=part, first_epoch=first)

    def to_frame(self) -> "pandas.DataFrame":
        """A table with one row per instance.

        Returns:
            Columns id, score (score_0, score_1, ... for several queries), and the part of each
            epoch: epoch_0, ... (score_0_epoch_0, ...).
        """
        import pandas

        several = self.values.ndim == 2
        names = [f"score_{q}" for q in range(len(self.values))] if several else ["score"]
        by_epoch = self.by_epoch if several else self.by_epoch[None]
        columns = {"id": np.arange(len(self))}
        columns |= dict(zip(names, np.atleast_2d(self.values)))
        for name, rows in zip(names, by_epoch):
            prefix = f"{name}_" if several else ""
            columns |= {f"{prefix}epoch_{self.first_epoch + e}": row for e, row in enumerate(rows)}
        return pandas.DataFrame(columns)

    def save(self, path: str | Path) -> Path:
        """Write the scores to a safetensors file. For other formats, see `to_frame`.

        Arguments:
            path: ends in .safetensors.

        Returns:
            The path.

        Raises:
            InvalidInput: for another ending.
            DrossError: if the file cannot be written.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            raise InvalidInput(
                f"{path} must end in .safetensors. For other formats, use pandas: "
                "scores.to_frame().to_csv(...)."
            )
        arrays = {"values": self.values, "by_epoch": np.ascontiguousarray(self.by_epoch)}
        if self.query_value is not None:
            arrays["query_value"] = self.query_value
        notes = {name: getattr(self, name) for name in _IN_FILES} | {"query": self.query.name}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_tensors(path, tensors, notes)
        return path

    @staticmethod
    def load(path: str | Path, query: Query | None = None) -> "Scores":
        """Read scores that `save` has written.

        Arguments:
            path: of the file.
            query: the query of the scores. A file contains only its name, and `Run.verify` needs
                the query.

        Returns:
            The same scores.

        Raises:
            InvalidInput: if there is no such file.
            CorruptFile: if the file does not contain the scores that were saved.
        """
        try:
            tensors, notes = read_tensors(Path(path))
        except FileNotFoundError:
            raise InvalidInput(f"There are no scores at {path}.") from None
        name = notes.pop("query")
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return Scores(**arrays, **notes, query=query_of_file(name) if query is None else query)

    def _order(self, query: int | None) -> np.ndarray:
        """The ids by their scores, lowest first; those that were never used last."""
        if self.values.ndim == 1:
            if query not in (None, 0):
                raise InvalidInput(f"These are the scores of one query; there is no query {query}.")
            return np.argsort(self.values, kind="stable")
        if query is None or not 0 <= query < len(self.values):
            last = len(self.values) - 1
            raise InvalidInput(
                f"These are the scores of {len(self.values)} queries: specify one, query=0..{last}."
            )
        return np.argsort(self.values[query], kind="stable")


def describe_growth(growth: float) -> str:
    """Whether scores can be trusted, from the growth of a small change during a run.

    Of 18 runs that magnified it more than 12 times, none had scores that ranked random subsets as
    retraining does (rank correlation at most 0.51). Less growth does not prove the opposite.
    docs/results/language-models.md has the runs.

    Arguments:
        growth: the length of the adjoint before the first step, divided by that after the last.
    """
    times = f"{growth:,.0f}" if growth >= 10 else f"{growth:.1f}"
    if growth > LARGEST_GROWTH:
        return (
            f"The run magnifies a small change by a factor of {times}. In such runs, scores do not "
            "predict the effect of retraining. Lower the learning rate, or train for fewer steps."
        )
    return (
        f"The run magnifies a small change by a factor of {times}, so the scores may or may not "
        "be reliable. Run.verify measures whether they are."
    )


def check_values(values: Any, queries: tuple[int, ...], used: np.ndarray) -> np.ndarray:
    """Numbers of the user as scores: float64, nan where the run did not use the instance.

    Arguments:
        values: what the user passed.
        queries: the shape of the query's value, () or (Q,).
        used: which instances the run used, bool [N].
    """
    try:
        array = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"values must be numbers, not {values!r:.60}.") from None
    wanted = (*queries, len(used))
    if array.shape != wanted:
        of_query = f"{queries[0]} values" if queries else "one value"
        raise InvalidInput(
            f"values must have the shape {list(wanted)}, not {list(array.shape)}: the run has "
            f"{len(used)} instances, and the query has {of_query}."
        )
    bad = used & ~np.isfinite(np.atleast_2d(array)).all(0)
    if bad.any():
        raise InvalidInput(
            f"values must be finite for all instances that the run used, but that of instance "
            f"{np.flatnonzero(bad)[0]} is not."
        )
    return np.where(used, array, np.nan)


def _add_epochs(by_epoch: np.ndarray) -> np.ndarray:
    """The scores from the part of each epoch: nan if no epoch used the instance."""
    used = ~np.isnan(by_epoch).all(-2)
    return np.where(used, np.nansum(by_epoch, axis=-2), np.nan)


def _check_count(m: int) -> int:
    if check_whole(m, "m") < 0:
        raise InvalidInput(f"m must not be negative, but it is {m}.")
    return m
