"""`dross judge` in its own process, started, watched and stopped from the page. One at a time."""

import json
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

from ..errors import BadInput, StorageFailed

_KEPT_OUTPUT = 8_000  # characters
_FRESH = 120.0  # seconds after which a progress file that nobody renews was left behind by a crash
_GRACE = 5.0


class Judging:
    def __init__(self, folder: Path, command: Sequence[str] | None = None):
        self.command = list(
            command or [sys.executable, "-m", "dross", "judge", str(folder), "--decisions"]
        )
        self._progress = folder / "judging.json"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._output = ""
        self._cancelled = False

    def start(self, seeds: int, quick: bool) -> None:
        if not 2 <= seeds <= 1000:
            raise BadInput("A judgement needs between 2 and 1000 seeds.")
        with self._lock:
            if self._running():
                raise BadInput("A judgement is running already. Wait for it, or cancel it.")
            self._output, self._cancelled = "", False
            command = [*self.command, *(["--quick"] if quick else ["--seeds", str(seeds)])]
            try:
                # Its own session, so that cancelling reaches its workers and Ctrl-C in our terminal does not reach it unasked.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise StorageFailed(f"dross judge cannot be started: {error.strerror}.") from error
            self._reader = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
            self._reader.start()

    def status(self) -> dict[str, Any]:
        """state: idle, running, elsewhere (started from a terminal), done, failed or cancelled; with done, of, stage and output."""
        with self._lock:
            running, process = self._running(), self._process
        if running or process is None:
            progress = self._read_progress(fresh=process is None)
            state = "running" if running else "elsewhere" if progress else "idle"
            return {"state": state, "output": ""} | (progress or {})
        if self._reader is not None:
            self._reader.join(_GRACE)
        state = "cancelled" if self._cancelled else "done" if process.returncode == 0 else "failed"
        return {"state": state, "output": self._output if state == "failed" else ""}

    def cancel(self) -> None:
        """End the process that was started here, and nothing else."""
        with self._lock:
            process = self._process
            if process is None or not self._running():
                return
            self._cancelled = True
            for ending in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, ending)  # its own group: see start
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
                    break
            self._progress.unlink(missing_ok=True)

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            while piece := stream.read1(4096):  # type: ignore[attr-defined]
                self._output = (self._output + piece.decode(errors="replace"))[-_KEPT_OUTPUT:]
        process.wait()

    def _read_progress(self, fresh: bool) -> dict[str, Any] | None:
        try:
            if fresh and time.time() - self._progress.stat().st_mtime > _FRESH:
                return None
            found = json.loads(self._progress.read_text())
            return {
                "done": int(found["done"]),
                "of": int(found["of"]),
                "stage": str(found.get("stage", "")),
            }
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there yet, or just being replaced
