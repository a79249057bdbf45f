"""One attempt of a task at a time, for the time that it may call a model.

Spark starts a twin of a slow task while the first attempt is still at work (speculation), and
another attempt of one whose executor it lost sight of. Both would pay what the first has in flight
or will ask next.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_LOCK = ".lock"
_LOOK_S = 0.1


@contextmanager
def claim(folder: Path, name: str) -> Iterator[None]:
    """Wait until no other attempt of a task is at work, and be the only one while the block runs.

    The lock is the kernel's: it goes with its process, at once, however that ends. A file system
    without locks keeps nobody waiting; there, what two attempts have open at once is paid twice.

    Args:
        folder: The run's journal.
        name: Of the task: the same for each of its attempts, and for no other task.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}{_LOCK}").open("w") as file:
        with suppress(OSError):  # no locks here
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait_for_claims(folder: Path, *, patience_s: float) -> None:
    """Return when no attempt of any task is at work, or after so many seconds.

    Args:
        folder: Of the journals of runs that are dead, whose workers may not know it yet.
        patience_s: A worker that is still there then is left to itself.
    """
    deadline = time.monotonic() + patience_s
    for lock in folder.rglob(f"*{_LOCK}"):
        with suppress(OSError), lock.open("w") as file:  # no locks here, or gone just now
            while not _is_free(file) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)


def _is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
