"""The nearline loop: one cycle after the other until it is told to stop."""

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hltm_spark.core.errors import (
    BudgetReachedError,
    DataError,
    EnvironmentProblem,
    HltmError,
    LeaseHeldError,
    LlmStopError,
    SettingsError,
)

logger = logging.getLogger("hltm_spark")

# The same cycle again fails again: what the command line ends with exit code 2, and a model that
# takes no request at all.
PERMANENT = (SettingsError, DataError, EnvironmentProblem, LlmStopError)
LONGEST_FACTOR = 10
YEAR_S = 365 * 24 * 3600.0

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", re.ASCII)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600}


def follow(
    cycle: Callable[[], None],
    *,
    every_s: float,
    stop: threading.Event,
    max_failures: int = 10,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> None:
    """Run a cycle every `every_s` seconds, until `stop` is set.

    The time is from start to start; a cycle that took longer is followed by the next at once. After
    failures in a row the next try is `every_s`, then 2, 4, 8 and at most 10 times as long after
    the end of the last. A root that another run holds is no failure: the next try is at its time.
    Nor is a cycle that its budget stopped: a budget holds for each cycle, the next one goes on.

    Args:
        cycle: One run. It ends by itself: `stop` is looked at between cycles.
        every_s: Seconds, 0 for no pause.
        stop: Ends the loop, also while it waits.
        max_failures: Failures in a row after which the last is raised.
        clock: Seconds that only grow.
        sleep: Waits so many seconds, or shorter where `stop` is set.

    Raises:
        HltmError: A permanent one at once (settings, data, environment, a model that refuses
            every request), another after `max_failures`.
        Exception: Any other of a cycle after `max_failures`.
    """
    sleep = sleep or stop.wait
    failures = 0
    while not stop.is_set():
        due = clock() + every_s
        try:
            cycle()
            failures = 0
        except PERMANENT:
            raise
        except BudgetReachedError as error:
            failures = 0  # what was paid is kept: the row of failures is broken
            logger.warning("cycle stopped by its budget: %s", _describe(error))
        except LeaseHeldError as error:
            logger.warning("cycle put off: %s", _describe(error))
        except Exception as error:
            failures += 1
            if failures >= max_failures:
                raise
            pause_s = every_s * min(2 ** (failures - 1), LONGEST_FACTOR)
            due = clock() + pause_s
            logger.warning(
                "cycle failed, %d of %d in a row: %s; next try in %g s",
                failures,
                max_failures,
                _describe(error),
                pause_s,
            )
        if not stop.is_set():
            sleep(max(0.0, due - clock()))


def _describe(error: Exception) -> str:
    """Return an error in one line; of a foreign one no message, which may hold document text."""
    name = type(error).__name__
    return f"{name}: {' '.join(str(error).split())}" if isinstance(error, HltmError) else name


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM or SIGINT sets; a second signal raises KeyboardInterrupt.

    To be entered in the main thread, and after the Spark session was made: PySpark puts its own
    handler for SIGINT in place, which cancels the running jobs.
    """
    stop = threading.Event()
    asked: list[threading.Thread] = []

    def set_and_tell(name: str) -> None:
        stop.set()
        logger.warning("%s: stopping after this cycle; once more stops at once", name)

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal passes both
        if asked:
            raise KeyboardInterrupt
        # In another thread: the handler may have interrupted this one while it held the lock of
        # `stop`, in its `wait`, or that of a log stream.
        name = signal.Signals(number).name
        asked.append(threading.Thread(target=set_and_tell, args=(name,), daemon=True))
        asked[0].start()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for thread in asked:
            thread.join()


def parse_duration(text: str) -> float:
    """Return the seconds that `60s`, `5m`, `1h` or `90` mean.

    Raises:
        SettingsError: Another form, nothing, or more than a year.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNIT_S[found[2]] if found else 0.0
    if not 0 < seconds <= YEAR_S:
        raise SettingsError(
            f"a duration must be like 60s, 5m, 1h or 90 (seconds), more than 0 and at most a year, "
            f"got {text!r}"
        )
    return seconds
