"""Something that is said again and again, from a thread, while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pulse(beat: Callable[[], bool], every: float) -> Iterator[None]:
    """Call ``beat`` every so many seconds until the block has ended, or until it returns False."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(every) and beat():
            pass

    thread = threading.Thread(target=go_on, name="job-batches-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
