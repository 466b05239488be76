"""Results as files: whole or absent, computed again where damaged, never mixed with others.

Many independent pieces of work: one after the other, or side by side through joblib.

By default all work is done in this process. `n_jobs`, or a `joblib.parallel_config(...)` around the
call, spreads the pieces: over the cores of this machine (loky), or over a cluster of Ray or Dask,
whichever backend the user has chosen. Where results go to a folder, a worker that sees the folder
writes its result there before it reports, so nothing that is finished can be lost; the caller
writes the results of workers that do not see it. A worker that dies loses only the pieces it was
working on, and these are sent out again.

    results = dict(sweep(work, pieces, what="counterfactual runs", n_jobs=2))
"""

import hashlib
import json
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._checks import check_installed, shorten
from .._io import write_bytes
from .._progress import hide_progress, no_bar, progress_bar
from ..data.fingerprint import digest_tensors
from ..errors import DrossError, DrossWarning, InputChanged, InvalidInput, first_line

_ROUNDING = 1e-5  # relative: other threads, another machine


def load(path: Path, settings: Any) -> dict | None:
    """A result kept as JSON, or None where there is none or it is damaged.

    Raises:
        InputChanged: the result was computed with other settings.
    """
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        path.unlink()
        return None
    if result.get("settings") != json.loads(json.dumps(settings)):
        raise _other_settings(path)
    return result


@dataclass(frozen=True)
class ResultStore:
    """The results of a sweep in a folder, one file per piece, each a dict of tensors.

    Arguments:
        folder: where the files lie.
        settings: everything that decides a result, as JSON holds it.
        numbers: the same for what was computed and may differ by rounding.
    """

    folder: Path
    settings: dict[str, Any]
    numbers: tuple[float, ...] = ()

    def begin(self) -> None:
        """Make the folder, and check that what lies in it belongs to this sweep.

        Raises:
            DrossError: the folder cannot be made.
            InputChanged: a result was computed with other settings.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DrossError(f"{self.folder} cannot be made: {error.strerror}.") from error
        for path in sorted(self.folder.glob("piece-*.safetensors")):
            self._read(path, tensors=False)

    def has(self, number: int) -> bool:
        """Whether there is a file for this piece, intact or not."""
        return self._path(number).exists()

    def get(self, number: int) -> dict[str, Tensor] | None:
        """The result of a piece, or None where it is missing or damaged."""
        return self._read(self._path(number)) if self.has(number) else None

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        """Write the result of a piece; raises DrossError."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in result.items()}
        about = {
            "settings": json.dumps(self.settings),
            "numbers": json.dumps(self.numbers),
            "digest": digest_tensors(tensors),
        }
        write_bytes(self._path(number), save(tensors, about))

    def _path(self, number: int) -> Path:
        return self.folder / f"piece-{number:06d}.safetensors"

    def _read(self, path: Path, tensors: bool = True) -> dict[str, Tensor] | None:
        """None: damaged, to be computed again and replaced."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()} if tensors else None  # noqa: SIM118
            settings, numbers = (json.loads(about[name]) for name in ("settings", "numbers"))
        except (SafetensorError, OSError, KeyError, ValueError):
            return None
        if settings != json.loads(json.dumps(self.settings)) or not self._are_equal(numbers):
            raise _other_settings(path)
        if found is not None and about.get("digest", "") not in ("", digest_tensors(found)):
            return None
        return found

    def _are_equal(self, numbers: Any) -> bool:
        return (
            isinstance(numbers, list)
            and len(numbers) == len(self.numbers)
            and np.allclose(numbers, self.numbers, rtol=_ROUNDING, atol=0, equal_nan=True)
        )


def _other_settings(path: Path) -> InputChanged:
    return InputChanged(
        f"{path} holds results of other settings, which must not be mixed with these. Choose "
        "another folder, or delete the old results."
    )


Work = Callable[[Any], Any]
Results = Iterator[tuple[int, Any]]  # (number of the piece, its result)

_MIN_PROCESSES_ALLOWED, _MAX_PROCESSES_PER_CORE = 64, 4
_MAX_WORKERS = 100_000  # of a cluster
_MAX_FAILURES_WITHOUT_PROGRESS = 3
# A pass over a model sets modes and random numbers for its whole process: one piece at a time.
_ONE_PIECE_AT_A_TIME = threading.Lock()
# At a worker: what the latest sweep it works for needs, by digest.
_UNPACKED: dict[str, tuple[Work, ResultStore | None]] = {}
_LOCAL_WORKERS: ContextVar[int] = ContextVar("local workers", default=1)


def uses_workers(n_jobs: int | None) -> bool:
    """Whether a sweep would leave this process; raises InvalidInput for a wrong `n_jobs`."""
    if n_jobs is not None and (not isinstance(n_jobs, int) or n_jobs == 0):
        raise InvalidInput(
            f"n_jobs is the number of workers, or -1 for one per core; not {n_jobs!r}."
        )
    if (
        n_jobs is None and sys.modules.get("joblib") is None
    ):  # then no parallel_config can be active
        return False
    check_installed("n_jobs", "joblib", "cloudpickle")
    from joblib import Parallel

    workers = int(Parallel(n_jobs=n_jobs).n_jobs)
    _check_workers(workers)
    return workers != 1


def _check_workers(workers: int) -> None:
    """Refuse more workers than there could be: joblib would start them all."""
    from joblib import cpu_count
    from joblib.parallel import get_active_backend

    most, why = _MAX_WORKERS, "no cluster has that many"
    if type(get_active_backend()[0]).__module__ == "joblib._parallel_backends":
        most = max(_MIN_PROCESSES_ALLOWED, _MAX_PROCESSES_PER_CORE * cpu_count())
        why = "each is a process on this machine with its own PyTorch; -1 is one per core"
    if workers > most:
        raise InvalidInput(f"n_jobs must be at most {most:,}, not {shorten(workers)}: {why}.")


def local_workers() -> int:
    """How many workers share this machine's memory, this process included."""
    return _LOCAL_WORKERS.get()


def set_local_workers(workers: int) -> None:
    """Declare how many workers share this machine's memory, where no sweep has started them."""
    _LOCAL_WORKERS.set(workers)


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
        DrossError: workers die repeatedly and nothing more gets done.
        InputChanged: the store has results of other settings.
    """
    spread = uses_workers(n_jobs)
    found: dict[int, Any] = {}
    if store is not None:
        store.begin()
        found = {k: result for k in range(len(pieces)) if (result := store.get(k)) is not None}
    missing = {k: piece for k, piece in enumerate(pieces) if k not in found}
    bar = progress_bar(what, len(pieces), show=progress, unit="pieces") if spread else no_bar()
    with bar as advance:
        advance(len(found))
        yield from found.items()
        results = (
            _run_on_workers(work, missing, n_jobs, store)
            if spread
            else _run_in_this_process(work, missing, store)
        )
        for number, result in results:
            advance(1)
            yield number, result


def _run_in_this_process(work: Work, missing: dict[int, Any], store: ResultStore | None) -> Results:
    for number, piece in missing.items():
        result = work(piece)
        if store is not None:
            store.put(number, result)
        yield number, result


def _run_on_workers(
    work: Work, missing: dict[int, Any], n_jobs: int | None, store: ResultStore | None
) -> Results:
    """Send the pieces out, again and again where workers die."""
    payload, failures, total = _pack(work, store), 0, len(missing)
    while missing:
        before = len(missing)
        failure: Exception | None = None
        results = _dispatch(payload, missing, n_jobs)
        while True:
            try:
                number, result = next(results)
            except StopIteration:
                break
            except Exception as error:
                if not (isinstance(error, _worker_failures()) or _is_final(error)):
                    raise
                failure = error
                break
            if store is not None and not store.has(number):  # the worker does not see our folder
                store.put(number, result)
            del missing[number]
            yield number, result
        if failure is None:
            return
        for number in list(missing):
            written = None if store is None else store.get(number)
            if written is not None:  # and never reported
                del missing[number]
                yield number, written
        failures = failures + 1 if len(missing) == before else 0
        if _is_final(failure):
            failures = _MAX_FAILURES_WITHOUT_PROGRESS
        done = f"{total - len(missing)} of {total} pieces are done"
        if store is not None:
            done += f" and kept in {store.folder}"
        if failures == _MAX_FAILURES_WITHOUT_PROGRESS:
            raise DrossError(
                f"Workers keep dying, and nothing more gets done ({first_line(failure)}). "
                f"{done}. The usual cause is memory: use fewer workers, and make the same call "
                "again."
            ) from failure
        if missing:
            warnings.warn(
                f"A worker died ({first_line(failure)}). {done}; going on with the rest.",
                DrossWarning,
                stacklevel=3,
            )


def _dispatch(
    payload: tuple[np.ndarray, str], missing: dict[int, Any], n_jobs: int | None
) -> Results:
    """Send the pieces to the active backend's workers once."""
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    backend: Any = get_active_backend()[0]
    raw, digest = payload
    # Ray's backend can only return everything at the end.
    way = "generator_unordered" if backend.supports_return_generator else "list"
    parallel: Any = Parallel(n_jobs=n_jobs, batch_size=1, return_as=way)  # type: ignore[arg-type]
    workers = int(parallel.n_jobs)
    shared: Any = raw
    if (dask := getattr(backend, "client", None)) is not None:
        # joblib would scatter the payload to one worker, with which it may be lost for good.
        # The result of a task is computed again.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its size
            shared = dask.submit(_return_payload, raw, key=f"dross-{digest}")
        machines = Counter(address.rpartition(":")[0] for address in dask.ncores())
        workers = max(machines.values(), default=1)
    with _safe_import_path():
        yield from parallel(
            delayed(_run_piece)(shared, digest, workers, number, piece)
            for number, piece in list(missing.items())
        )


@contextmanager
def _safe_import_path() -> Iterator[None]:
    """Inside, new processes do not import from the current folder first.

    loky starts its workers with `python -m`, which would take a random.py in that folder for
    Python's own. They get this process's sys.path afterwards, so what can be imported here can be
    imported there.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONSAFEPATH", None)
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _pack(work: Work, store: ResultStore | None) -> tuple[np.ndarray, str]:
    """What every piece needs, as an array that joblib shares among processes, and its digest."""
    import cloudpickle

    try:
        raw = cloudpickle.dumps((work, store))
    except Exception as error:  # whatever the objects of the user raise
        raise InvalidInput(
            f"This work cannot be sent to another process: {first_line(error)}. Models, data sets, "
            "losses and queries must be picklable; leave out n_jobs and parallel_config to do it "
            "here."
        ) from error
    return np.frombuffer(raw, dtype=np.uint8), hashlib.sha256(raw).hexdigest()


def _return_payload(payload: np.ndarray) -> np.ndarray:
    return payload


def _run_piece(payload: Any, digest: str, workers: int, number: int, piece: Any) -> tuple[int, Any]:
    """Work on one piece at a worker; `workers` is how many there are on its machine."""
    from joblib import parallel_config

    # A sweep inside a piece stays in it.
    with _ONE_PIECE_AT_A_TIME, hide_progress(), parallel_config(backend="sequential", n_jobs=1):
        work, store = _unpack(payload, digest)
        if store is not None and not store.folder.is_dir():  # of another machine
            store = None
        if store is not None and (written := store.get(number)) is not None:
            return number, written  # sent out again by a cluster that lost it on its way to us
        cores = os.cpu_count() or 1
        token = _LOCAL_WORKERS.set(min(workers, cores) if workers > 0 else cores)
        try:
            result = work(piece)
        finally:
            _LOCAL_WORKERS.reset(token)
        if store is not None:
            store.put(number, result)
    return number, result


def _unpack(payload: Any, digest: str) -> tuple[Work, ResultStore | None]:
    import pickle

    if digest not in _UNPACKED:
        _UNPACKED.clear()
        # With a cluster of one worker joblib stays in our process, where the payload is a future.
        raw = payload if isinstance(payload, np.ndarray) else payload.result()
        _UNPACKED[digest] = pickle.loads(raw.data)
    return _UNPACKED[digest]


def _worker_failures() -> tuple[type[BaseException], ...]:
    """How loky and Ray say that a process is gone. Dask sends a piece out again by itself."""
    ray = sys.modules.get("ray")
    return (BrokenExecutor,) if ray is None else (BrokenExecutor, ray.exceptions.RayActorError)


def _is_final(error: BaseException) -> bool:
    """Whether Dask has given up on a piece, after several attempts."""
    scheduler = sys.modules.get("distributed.scheduler")
    return scheduler is not None and isinstance(error, scheduler.KilledWorker)
