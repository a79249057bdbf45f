"""How a run is told to make no further call: a file in its journal that every worker looks at."""

import time
from dataclasses import dataclass

from hltm_spark.pipeline.journal_store import JournalStore

LLM, DOWN, BUDGET = "llm", "down", "budget"
"""Kinds of stops: a model that takes no request, an endpoint that is down, a budget's end."""

STOP, SKIPPED = "STOP", "SKIPPED"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run makes no further call; `kind` is `LLM`, `DOWN` or `BUDGET`."""

    kind: str
    message: str


def write_stop(store: JournalStore, message: str, *, kind: str) -> None:
    """Tell every worker of a run to make no further call, unless one was told already."""
    store.write_new(STOP, f"{kind}\n{message}")


def note_skipped(store: JournalStore) -> None:
    """Note that a request of a run was not made because of a stop."""
    store.write_new(SKIPPED, "")


def read_stop(store: JournalStore) -> Stop | None:
    """Return what keeps a run from going on, or None.

    A budget that the last call of all used up keeps it from nothing: only a request that was not
    made does.
    """
    if not store.exists(STOP):
        return None
    content = b"".join(stream.read() for stream in store.streams([STOP]))
    kind, _, message = content.decode().partition("\n")
    if kind == BUDGET and not store.exists(SKIPPED):
        return None
    return Stop(kind, message)


@dataclass(slots=True)
class StopWatch:
    """One worker's look at the stop of its run, from any thread.

    It looks before every request, but no more often than the store says: what was seen a moment
    ago stands where a look is a request of its own.
    """

    store: JournalStore
    _is_stopped: bool = False
    _is_noted: bool = False
    _looked_at: float = float("-inf")

    def stop(self, message: str, *, kind: str) -> None:
        """Tell every worker, also where a budget said so already: this weighs more."""
        self.store.write(STOP, f"{kind}\n{message}")
        self._is_stopped = True
        # a budget's stop that is written in the same moment may replace this one, and must hold
        self.note_skipped()

    def is_stopped(self) -> bool:
        """Tell whether some worker of the run, or its driver, said stop."""
        now = time.monotonic()
        if not self._is_stopped and now - self._looked_at >= self.store.look_s:
            self._looked_at = now
            if self.store.exists(STOP):
                self._is_stopped = True
        return self._is_stopped

    def note_skipped(self) -> None:
        """Note once that a request was not made."""
        if not self._is_noted:
            note_skipped(self.store)
            self._is_noted = True
