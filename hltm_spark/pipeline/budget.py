"""A run keeps to its budget: the driver alone decides, from what the journal holds.

It hands out no more requests than `budgets.max_calls` has left, and looks at the journal while
calls go on. At the limit it writes the STOP file, after which no worker makes a further call: what
is in flight then, with the repair that it may need, is still paid.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hltm_spark.core.errors import EnvironmentProblem
from hltm_spark.models.budgets import Budget, Spent
from hltm_spark.pipeline.journal_stop import BUDGET, note_skipped, read_stop, write_stop
from hltm_spark.pipeline.journal_store import FolderStore, JournalStore
from hltm_spark.pipeline.journal_sums import Spending

logger = logging.getLogger("hltm_spark")

POLL_S = 0.25
"""Seconds between two looks at the journal, where one costs nothing."""


@dataclass(slots=True)
class Meter:
    """What a run has spent, held against its budget; unlimited where it is made from nothing."""

    budget: Budget = field(default_factory=Budget)
    journal: JournalStore = field(default_factory=lambda: FolderStore(Path()))
    _spending: Spending = field(init=False)
    _answered: int = 0

    def __post_init__(self) -> None:
        self._spending = Spending(self.journal)

    def spent(self) -> Spent:
        """Return what the journal says was paid."""
        return self._spending.read()

    def answered(self) -> int:
        """Return how many answers the journal has, for progress."""
        with suppress(EnvironmentProblem):  # said by those who write there
            self._answered = self._spending.read().calls
        return self._answered

    def portions(self, count: int) -> Iterator[range]:
        """Yield which of `count` open requests to answer next, until all were or the run stops.

        Every portion is as large as the calls that are left. Requests that failed unpaid leave
        some, so that a second portion may follow; an unlimited run gets all in one.
        """
        done = 0
        while done < count:
            end = count
            if self.budget.is_limited:
                if self._is_over():
                    return
                end = done + self.budget.calls_left(self.spent(), wanted=count - done)
            yield range(done, end)
            done = end

    def allowed(self, sizes: Sequence[int], *, in_flight: Sequence[int]) -> int:
        """Return how many open requests may be made beside those in flight.

        At the end of a budget none is, until those in flight are answered: where some failed
        unpaid, calls are left. With none in flight, 0 means that the run must stop.

        Args:
            sizes: Prompt tokens of each open request, about, in the order in which they go out.
            in_flight: Those of the requests in flight.
        """
        if not self.budget.is_limited:
            return len(sizes)
        if not in_flight and self._is_over():
            return 0
        return self.budget.room(self.spent(), sizes, in_flight=in_flight)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stop the workers once the budget is reached while the block runs."""
        if not self.budget.is_limited:
            yield
            return
        finished = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(finished,), name="hltm-budget", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def _watch(self, finished: threading.Event) -> None:
        while not finished.wait(max(POLL_S, self.journal.look_s)):
            try:
                if reached := self.budget.reached(self.spent()):
                    write_stop(self.journal, f"{reached} is reached", kind=BUDGET)
                    return
            except EnvironmentProblem as problem:  # the workers, who write there, end on it
                logger.warning("%s", problem)

    def _is_over(self) -> bool:
        """Tell whether the run must stop before another request; leave word why."""
        if reached := self.budget.reached(self.spent()):
            write_stop(self.journal, f"{reached} is reached", kind=BUDGET)
            note_skipped(self.journal)
        return read_stop(self.journal) is not None
