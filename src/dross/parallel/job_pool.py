"""Many independent pieces of work: here one after the other, or side by side through joblib.

Who says nothing gets this process. `n_jobs`, or a `joblib.parallel_config(...)` around the call, spreads the pieces: over the cores of this
machine (loky), or over a cluster of Ray or Dask, whichever backend the user has chosen. Where results go to a folder, a worker that sees the
folder writes its result there before it reports, so nothing that is finished can be lost; the caller writes what workers without that
folder hand in. A worker that dies costs the pieces it had in hand, which are given out again.

    results = dict(sweep(work, pieces, what="counterfactual runs", n_jobs=2))
"""

import hashlib
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..errors import BadInput, DrossWarning, WorkerLost, first_line
from ..support.progress import hide_progress, progress_bar
from .result_store import Pieces

_PATIENCE = 3  # deaths in a row without anything finished in between
_ALONE = threading.Lock()  # a pass over a model sets modes and random numbers for its whole process: one piece at a time in each
_UNPACKED: dict[
    str, tuple[Callable[[Any], Any], Pieces | None]
] = {}  # at a worker: the latest sweep it works for
_NEIGHBOURS: ContextVar[int] = ContextVar("neighbours", default=1)

Found = Iterator[tuple[int, Any]]


def is_spread(n_jobs: int | None) -> bool:
    """Whether a sweep would leave this process. Who has not imported joblib is not inside its parallel_config."""
    if n_jobs is not None and (not isinstance(n_jobs, int) or n_jobs == 0):
        raise BadInput(f"n_jobs is the number of workers, or -1 for one per core; not {n_jobs!r}.")
    if n_jobs is None and "joblib" not in sys.modules:
        return False
    from joblib import Parallel

    return Parallel(n_jobs=n_jobs).n_jobs != 1


def neighbours() -> int:
    """How many workers of a sweep share this machine's memory, the asking one included."""
    return _NEIGHBOURS.get()


def set_local_workers(workers: int) -> None:
    """This process is one of so many that share the machine's memory, and whoever started them was no sweep."""
    _NEIGHBOURS.set(workers)


def sweep(
    work: Callable[[Any], Any],
    pieces: Sequence[Any],
    *,
    what: str,
    n_jobs: int | None = None,
    kept: Pieces | None = None,
    progress: bool = True,
) -> Found:
    """(number of the piece, its result), as they finish. In this process the work shows its own progress."""
    spread = is_spread(n_jobs)
    found: dict[int, Any] = {}
    if kept is not None:
        kept.begin()
        found = {k: result for k in range(len(pieces)) if (result := kept.get(k)) is not None}
    missing = {k: piece for k, piece in enumerate(pieces) if k not in found}
    with progress_bar(what, len(pieces), show=progress and spread, unit="pieces") as told:
        told(len(found))
        yield from found.items()
        for number, result in (_spread if spread else _here)(work, missing, n_jobs, kept):
            told(1)
            yield number, result


def _here(
    work: Callable[[Any], Any], missing: dict[int, Any], n_jobs: int | None, kept: Pieces | None
) -> Found:
    for number, piece in missing.items():
        result = work(piece)
        if kept is not None:
            kept.put(number, result)
        yield number, result


def _spread(
    work: Callable[[Any], Any], missing: dict[int, Any], n_jobs: int | None, kept: Pieces | None
) -> Found:
    payload, deaths, total = _packed(work, kept), 0, len(missing)
    while missing:
        before = len(missing)
        died: Exception | None = None
        found = _given_out(payload, missing, n_jobs)
        while True:
            try:
                number, result = next(found)
            except StopIteration:
                break
            except Exception as error:
                if not (isinstance(error, _worker_failures()) or _is_final(error)):
                    raise
                died = error
                break
            if kept is not None and not kept.has(number):  # the worker does not see our folder
                kept.put(number, result)
            del missing[number]
            yield number, result
        if died is None:
            return
        for number in list(missing):
            written = None if kept is None else kept.get(number)
            if written is not None:  # and never reported
                del missing[number]
                yield number, written
        deaths = _PATIENCE if _is_final(died) else deaths + 1 if len(missing) == before else 0
        done = f"{total - len(missing)} of {total} pieces are done" + (
            "" if kept is None else f" and kept in {kept.folder}"
        )
        if deaths == _PATIENCE:
            raise WorkerLost(
                f"Workers die again and again, and nothing more gets done ({first_line(died)}). {done}. The usual cause is memory: take fewer "
                "workers at once, and give the same call again."
            ) from died
        if missing:
            warnings.warn(
                f"A worker died ({first_line(died)}). {done}; going on with the rest.",
                DrossWarning,
                stacklevel=3,
            )


def _given_out(
    payload: "tuple[np.ndarray, str]", missing: dict[int, Any], n_jobs: int | None
) -> Found:
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    backend: Any = get_active_backend()[0]
    raw, digest = payload
    way = (
        "generator_unordered" if backend.supports_return_generator else "list"
    )  # Ray's hands everything in at the end
    parallel = Parallel(n_jobs=n_jobs, batch_size=1, return_as=way)  # type: ignore[arg-type]
    width = int(parallel.n_jobs)  # type: ignore[arg-type]
    shared: Any = raw
    if (dask := getattr(backend, "client", None)) is not None:
        # joblib would scatter it to one worker, with which it may be lost for good; the result of a task is made again
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its size
            shared = dask.submit(_as_it_is, raw, key=f"dross-{digest}")
        width = max(
            Counter(address.rpartition(":")[0] for address in dask.ncores()).values(), default=1
        )  # of one machine
    yield from parallel(
        delayed(_at_worker)(shared, digest, width, number, piece)
        for number, piece in list(missing.items())
    )  # type: ignore[misc]


def _packed(work: Callable[[Any], Any], kept: Pieces | None) -> "tuple[np.ndarray, str]":
    """What every piece needs, once: an array, which joblib shares among the processes of a machine."""
    import cloudpickle

    try:
        raw = cloudpickle.dumps((work, kept))
    except Exception as error:  # whatever the objects of the user raise
        raise BadInput(
            f"This work cannot be sent to another process: {first_line(error)}. Models, data sets, losses and queries must be picklable; "
            "leave out n_jobs and parallel_config to do it here."
        ) from error
    return np.frombuffer(raw, dtype=np.uint8), hashlib.sha256(raw).hexdigest()


def _as_it_is(payload: np.ndarray) -> np.ndarray:
    return payload


def _at_worker(payload: Any, digest: str, width: int, number: int, piece: Any) -> tuple[int, Any]:
    import pickle

    from joblib import parallel_config

    with (
        _ALONE,
        hide_progress(),
        parallel_config(backend="sequential", n_jobs=1),
    ):  # a sweep inside a piece stays in it
        if digest not in _UNPACKED:
            _UNPACKED.clear()
            raw = (
                payload if isinstance(payload, np.ndarray) else payload.result()
            )  # a cluster of one: joblib stays in our process
            _UNPACKED[digest] = pickle.loads(raw.data)
        work, kept = _UNPACKED[digest]
        within_reach = kept is not None and kept.folder.is_dir()
        if kept is not None and within_reach and (written := kept.get(number)) is not None:
            return number, written  # given out again by a cluster that lost it on its way to us
        cores = os.cpu_count() or 1
        token = _NEIGHBOURS.set(min(width, cores) if width > 0 else cores)
        try:
            result = work(piece)
        finally:
            _NEIGHBOURS.reset(token)
        if kept is not None and within_reach:
            kept.put(number, result)
    return number, result


def _worker_failures() -> tuple[type[BaseException], ...]:
    """How loky and Ray say that a process is gone. Dask gives a piece out again by itself."""
    ray = sys.modules.get("ray")
    return (BrokenExecutor,) if ray is None else (BrokenExecutor, ray.exceptions.RayActorError)


def _is_final(error: BaseException) -> bool:
    """Dask says so only after it has tried a piece several times."""
    scheduler = sys.modules.get("distributed.scheduler")
    return scheduler is not None and isinstance(error, scheduler.KilledWorker)
