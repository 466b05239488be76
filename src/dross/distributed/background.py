"""Work that runs in its own thread while the caller goes on."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def run_in_background(function: Callable[[], Result], name: str) -> Future[Result]:
    """Call a function in a new thread. The process does not end before the function has.

    Arguments:
        function: what is called.
        name: of the thread, for debuggers.

    Returns:
        What will hold its result or its error.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name=name).start()
    return future
