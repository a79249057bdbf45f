"""Progress of a run: a bar with counts and remaining time on a terminal, plain lines elsewhere."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

logger = logging.getLogger("hltm_spark")

LINE_EVERY_S = 10.0


@contextmanager
def counting(what: str, *, total: int, count: Callable[[], int]) -> Iterator[None]:
    """Show how a count grows towards a total while the block runs.

    Args:
        what: What is counted, such as `calls for level seat`.
        total: The count at the end.
        count: Reads the count now; called once a second from another thread.
    """
    finished = threading.Event()
    show = _bar if sys.stderr.isatty() else _lines
    thread = threading.Thread(target=show, args=(what, total, count, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _bar(what: str, total: int, count: Callable[[], int], finished: threading.Event) -> None:
    with tqdm(total=total, desc=what, unit="", file=sys.stderr, leave=False) as bar:
        while not finished.wait(1.0):
            bar.update(count() - bar.n)
        bar.update(count() - bar.n)


def _lines(what: str, total: int, count: Callable[[], int], finished: threading.Event) -> None:
    elapsed = 0.0
    while not finished.wait(LINE_EVERY_S):
        elapsed += LINE_EVERY_S
        done = count()
        rate = done / elapsed
        left = f", about {(total - done) / rate:.0f} s left" if rate else ""
        logger.info("%s: %d of %d%s", what, done, total, left)
