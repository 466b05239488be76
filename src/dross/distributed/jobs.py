"""Many independent pieces of work: one after the other, or side by side through joblib.

Work is done in this process, unless `n_jobs` or a `joblib.parallel_config(...)` around the call
spreads it: over the cores of this machine (loky), or over a cluster of Dask or Ray, whichever
backend the user has chosen. Results that go to a folder are written piece by piece, by the worker
itself if it sees the folder. The same call, made again, computes only what is missing.

    results = dict(sweep(work, pieces, what="counterfactual runs", n_jobs=2))
"""

import hashlib
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .._progress import hide_progress, progress_bar
from ..data.sealed import read_tensors, write_tensors
from ..errors import CorruptFile, DrossError, InputChanged, InvalidInput, first_line

Work = Callable[[Any], Any]
Results = Iterator[tuple[int, Any]]  # (number of the piece, its result)

_ROUNDING = 1e-5  # relative: other threads, another machine
# A pass over a model sets modes and random numbers for its whole process, so that threads, which
# a backend may use as workers, must take turns.
_ONE_PIECE_AT_A_TIME = threading.Lock()
_LOCAL_WORKERS: ContextVar[int] = ContextVar("local workers", default=1)


@dataclass(frozen=True)
class ResultStore:
    """The results of a sweep in a folder, one file per piece, each a dict of tensors.

    Arguments:
        folder: where the files lie.
        settings: everything that decides a result, as JSON.
        numbers: the same for what was computed and may differ by rounding.
    """

    folder: Path
    settings: dict[str, Any]
    numbers: tuple[float, ...] = ()

    @staticmethod
    def under(folder: Path, settings: dict[str, Any]) -> "ResultStore":
        """Results in a separate folder under this one, named by the settings."""
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return ResultStore((folder / name).absolute(), settings)

    def begin(self) -> None:
        """Make the folder; raises DrossError where it cannot be made."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DrossError(f"{self.folder} cannot be created: {error.strerror}.") from error

    def get(self, number: int) -> dict[str, Tensor] | None:
        """The result of a piece, or None if it is missing or damaged.

        Raises:
            InputChanged: it was computed with other settings.
        """
        path = self._path(number)
        try:
            result, notes = read_tensors(path)
        except (FileNotFoundError, CorruptFile):
            return None
        settings = json.loads(json.dumps(self.settings))  # as they are read from a file
        numbers = notes["numbers"]
        if (
            notes["settings"] != settings
            or len(numbers) != len(self.numbers)
            or not np.allclose(numbers, self.numbers, rtol=_ROUNDING, atol=0, equal_nan=True)
        ):
            raise InputChanged(
                f"{path} contains results from other settings, which must not be mixed with these. "
                "Choose another folder, or delete the old results."
            )
        return result

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        """Write the result of a piece; raises DrossError."""
        notes = {"settings": self.settings, "numbers": self.numbers}
        write_tensors(self._path(number), result, notes)

    def _path(self, number: int) -> Path:
        return self.folder / f"piece-{number:06d}.safetensors"


def uses_workers(n_jobs: int | None) -> bool:
    """Whether a sweep would leave this process; raises InvalidInput for a wrong `n_jobs`."""
    if n_jobs is not None and (not isinstance(n_jobs, int) or n_jobs == 0):
        raise InvalidInput(
            f"n_jobs must be the number of workers, or -1 for one per core, not {n_jobs!r}."
        )
    if n_jobs is None and sys.modules.get("joblib") is None:
        return False  # no parallel_config can be active
    from joblib import effective_n_jobs

    return effective_n_jobs(n_jobs) != 1  # type: ignore[arg-type]


def local_workers() -> int:
    """How many workers share this machine's memory, this process included."""
    return _LOCAL_WORKERS.get()


def sweep(
    work: Work,
    pieces: Sequence[Any],
    *,
    what: str,
    n_jobs: int | None = None,
    store: ResultStore | None = None,
    progress: bool = True,
) -> Results:
    """Work on every piece and yield (number of the piece, its result) as they finish.

    In this process the work shows its own progress; with workers, this shows the pieces.

    Arguments:
        work: computes the result of one piece: a dict of tensors where there is a store.
        pieces: what is worked on, each picklable where there are workers.
        what: a title for the progress bar.
        n_jobs: the number of workers, -1 for one per core. None: as joblib's active
            parallel_config has it, else this process.
        store: where results are kept; those that it has already are not computed again.
        progress: whether a progress bar is shown.

    Raises:
        InvalidInput: `n_jobs` is not a number of workers, or the work cannot be pickled.
        DrossError: a worker died.
        InputChanged: the store has results of other settings.
    """
    spread = uses_workers(n_jobs)
    missing = dict(enumerate(pieces))
    bar = progress_bar(what, len(pieces), show=progress, unit="pieces")
    with bar if spread else nullcontext(lambda amount: None) as advance:
        if store is not None:
            store.begin()
            for number in range(len(pieces)):
                kept = store.get(number)
                if kept is not None:
                    del missing[number]
                    advance(1)
                    yield number, kept
        if not spread:
            for number, piece in missing.items():
                yield number, _compute(work, store, number, piece)
            return
        try:
            for number, result in _run_on_workers(work, missing, n_jobs, store):
                advance(1)
                yield number, result
        except BrokenExecutor as error:
            kept_in = "" if store is None else f" Finished pieces are kept in {store.folder}."
            raise DrossError(
                f"A worker died ({first_line(error)}). The usual cause is running out of memory: "
                f"use fewer workers and repeat the call.{kept_in}"
            ) from error


def _run_on_workers(
    work: Work, pieces: dict[int, Any], n_jobs: int | None, store: ResultStore | None
) -> Results:
    import cloudpickle
    from joblib import Parallel, delayed, effective_n_jobs
    from joblib.parallel import get_active_backend

    try:
        raw = cloudpickle.dumps((work, store))
    except Exception as error:  # whatever the objects of the user raise
        raise InvalidInput(
            f"This work cannot be sent to another process: {first_line(error)}. Models, datasets, "
            "losses and queries must be picklable; leave out n_jobs and parallel_config to run in "
            "this process."
        ) from error
    backend: Any = get_active_backend()[0]
    # Ray's backend can only return everything at the end.
    return_as = "generator_unordered" if backend.supports_return_generator else "list"
    parallel: Any = Parallel(n_jobs=n_jobs, batch_size=1, return_as=return_as)  # type: ignore[arg-type]
    # A part of the function and not an argument: joblib would scatter a large argument to one
    # worker of Dask, and it would be lost with that worker.
    run = partial(_run_piece, raw, effective_n_jobs(n_jobs))  # type: ignore[arg-type]
    for number, result in parallel(delayed(run)(number, piece) for number, piece in pieces.items()):
        if store is not None and store.get(number) is None:  # the worker does not see our folder
            store.put(number, result)
        yield number, result


def _run_piece(raw: bytes, workers: int, number: int, piece: Any) -> tuple[int, Any]:
    """At a worker: compute the result of one piece."""
    from joblib import parallel_config

    # a sweep inside a piece stays in this process
    with _ONE_PIECE_AT_A_TIME, hide_progress(), parallel_config(backend="sequential", n_jobs=1):
        work, store = pickle.loads(raw)
        if store is not None and not store.folder.is_dir():
            store = None  # of another machine
        if store is not None and (kept := store.get(number)) is not None:
            return number, kept  # sent out again by a cluster that lost it on its way to us
        token = _LOCAL_WORKERS.set(min(workers, os.cpu_count() or 1))
        try:
            return number, _compute(work, store, number, piece)
        finally:
            _LOCAL_WORKERS.reset(token)


def _compute(work: Work, store: ResultStore | None, number: int, piece: Any) -> Any:
    result = work(piece)
    if store is not None:
        store.put(number, result)
    return result
