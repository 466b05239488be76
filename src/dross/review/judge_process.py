"""`dross judge` in its own process, started, watched and stopped from the page. One at a time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from .._io import open_in_place, read_file
from ..cleaning.judge import check_seeds
from ..errors import DrossError, InvalidInput

_MAX_OUTPUT_CHARACTERS = 8_000
_SECONDS_UNTIL_STALE = 120.0  # a progress file that is older was left behind by a crash
_SECONDS_TO_END = 5.0


class _Progress(msgspec.Struct):
    """What `dross judge` writes to judging.json while it works."""

    done: int
    of: int
    stage: str = ""


class JudgeProcess:
    """At most one process that judges the decisions of a project folder.

    Arguments:
        folder: The project folder; the process writes its progress there.
        command: What to run instead of `dross judge FOLDER --decisions`.
        trust_code: The `module:function`s that the process may import.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str] | None = None,
        trust_code: Sequence[str] = (),
    ):
        # -P: a random.py in the current folder may be anyone's file, not Python's own module.
        usual = [sys.executable, "-P", "-m", "dross", "judge", str(folder), "--decisions"]
        trusted = [f"--trust-code={entry}" for entry in trust_code]
        self.command = [*(command or usual), *trusted]
        self.trust_code = tuple(trust_code)
        self._progress_file = folder / "judging.json"
        self._log = folder / "judging.log"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def start(self, seeds: int, quick: bool) -> None:
        """Start a judgment with this many seeds; a quick one has its own number of them."""
        check_seeds(seeds)
        with self._lock:
            if self._is_running():
                raise InvalidInput("dross judge is already running. Wait for it, or cancel it.")
            self._cancelled = False
            try:
                with open_in_place(self._log) as log:
                    log.truncate()
                    # A session of its own: cancelling reaches its workers, and Ctrl-C in our
                    # terminal does not reach it.
                    self._process = subprocess.Popen(
                        [*self.command, *(["--quick"] if quick else ["--seeds", str(seeds)])],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
            except OSError as error:
                raise DrossError(f"dross judge cannot be started: {error.strerror}.") from error

    def status(self) -> dict[str, Any]:
        """Return the state and the output, and while it runs also done, of and stage.

        state is idle, running, elsewhere (started from a terminal), done, failed or cancelled.
        """
        with self._lock:
            running = self._is_running()
            process = self._process
            if running or process is None:
                progress = self._read_progress(only_fresh=process is None)
                state = "running" if running else "elsewhere" if progress else "idle"
                return {"state": state, "output": ""} | (progress or {})
            if self._cancelled:
                return {"state": "cancelled", "output": ""}
            if process.returncode == 0:
                return {"state": "done", "output": ""}
            output = read_file(self._log).decode(errors="replace")
            return {"state": "failed", "output": output[-_MAX_OUTPUT_CHARACTERS:]}

    def cancel(self) -> None:
        """End the process that was started here, and nothing else."""
        with self._lock:
            process = self._process
            if process is None or not self._is_running():
                return
            self._cancelled = True
            for ending in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, ending)  # a group of its own: see start
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_TO_END)
                    break
            self._progress_file.unlink(missing_ok=True)

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read_progress(self, only_fresh: bool) -> dict[str, Any] | None:
        try:
            age = time.time() - self._progress_file.stat().st_mtime
            if only_fresh and age > _SECONDS_UNTIL_STALE:
                return None
            progress = msgspec.json.decode(read_file(self._progress_file), type=_Progress)
        except (OSError, msgspec.DecodeError):
            return None  # not there yet, or not ours
        return msgspec.structs.asdict(progress)
