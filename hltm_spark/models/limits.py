"""How many calls one worker may have in flight and how fast they may start, learned as it goes.

The limits of conf are totals for a run: each worker takes its share of what the workers that are
still at work have together. Within its share a worker halves what it has in flight when the
endpoint says that it is too much (HTTP 429), and creeps up again with every success; now and then a
refusal among many answers is no such word. A streak of failures opens the circuit: all wait, then
one try decides whether they go on.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import EndpointDownError
from hltm_spark.models.llm import UNAVAILABLE

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
ANSWERS_A_REFUSAL = 10
"""Answers that make up for one refusal: where one in twenty is refused, whatever the load, less in
flight would only take longer; where the load is too much, refusals are as many as answers."""

_BURST_S = 2.0  # seconds of a rate that may be used at once
_LOOK_S = 1.0  # how long a share is taken as it was

Workers = Callable[[], tuple[int, int]]
"""(rank, count): place of this worker among those that are still at work, and how many they are."""


def alone() -> tuple[int, int]:
    """Say that there is no other worker."""
    return 0, 1


@dataclass(slots=True)
class Try:
    """One call that was let through.

    Attributes:
        began: By the limiter's clock.
        tokens: Charged when it began: an estimate.
    """

    began: float
    tokens: int


class CallLimiter:
    """Lets the calls of one worker through. Safe to share between its threads."""

    def __init__(
        self,
        settings: LlmSettings,
        *,
        workers: Workers = alone,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with the whole share.

        Args:
            settings: Totals of the run.
            workers: Which part of them is this worker's; asked once a second at most.
            clock: Seconds that only grow.
        """
        self._settings, self._workers, self._clock = settings, workers, clock
        self._changed = threading.Condition()
        self._in_flight = 0
        self._learned = settings.max_concurrency
        self._credit = 0  # answers that no refusal was held against yet
        self._cut_at = float("-inf")
        self._requests = _Rate(settings.requests_per_minute)
        self._tokens = _Rate(settings.tokens_per_minute)
        self._circuit = _Circuit(settings.circuit_failures, settings.circuit_s)
        self._rank, self._count = workers()
        self._looked_at = clock()

    @property
    def window(self) -> int:
        """Calls that may be in flight now, at least 1."""
        self._look()
        share, rest = divmod(self._settings.max_concurrency, self._count)
        return max(1, min(share + (self._rank < rest), self._learned))

    @contextmanager
    def turn(self, tokens: int) -> Iterator[Try]:
        """Wait until a call may begin; it is in flight while the block runs.

        Args:
            tokens: What it will be charged with, about.

        Raises:
            EndpointDownError: The circuit was open for too long without any success.
        """
        with self._changed:
            while (wait_s := self.wait_s()) > 0:
                self._changed.wait(wait_s)
            now = self._clock()
            self._in_flight += 1
            self._requests.take(1, now, self._count)
            self._tokens.take(tokens, now, self._count)
            self._circuit.begin(now)
        try:
            yield Try(now, tokens)
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify()

    def answered(self, one: Try, *, tokens: int = 0) -> None:
        """Note an answer, and what it was really charged with; 0 where nobody says."""
        with self._changed:
            self._circuit.close()
            # by one an answer: some refusals now and then must not keep it low
            self._learned = min(self._learned + 1, self._settings.max_concurrency)
            self._credit = min(self._credit + 1, max(ANSWERS_A_REFUSAL, self._learned))
            if tokens:
                self._tokens.take(tokens - one.tokens, self._clock(), self._count)
            self._changed.notify()

    def refused(self, one: Try) -> None:
        """Note that the endpoint had too much to do: halve what is in flight, once a round.

        Not so where `ANSWERS_A_REFUSAL` answers came for each refusal.
        """
        with self._changed:
            self._circuit.close()  # whoever asks for less is not down
            if one.began < self._cut_at:
                return
            if self._credit >= ANSWERS_A_REFUSAL:
                self._credit -= ANSWERS_A_REFUSAL
            else:
                self._learned = max(1, self.window // 2)
                self._cut_at = self._clock()
                logger.info("the endpoint asks for less: %d calls at once", self._learned)

    def failed(self, one: Try) -> None:
        """Note an endpoint that is down: no connection, no answer in time, HTTP 5xx."""
        with self._changed:
            if pause_s := self._circuit.note_failure(one, self._clock()):
                logger.warning("the endpoint fails again and again: no call for %g s", pause_s)
            self._changed.notify_all()

    def wait_s(self) -> float:
        """Return 0 where a call may begin now, else how long to wait before looking again.

        Raises:
            EndpointDownError: As in `turn`.
        """
        now = self._clock()
        waits = (
            self._circuit.wait_s(now, self._in_flight),
            self._requests.wait_s(now),
            self._tokens.wait_s(now),
            _LOOK_S if self._in_flight >= self.window else 0.0,
        )
        return max(waits)

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at >= _LOOK_S:
            self._rank, self._count = self._workers()
            self._looked_at = now


@dataclass(slots=True)
class _Rate:
    """A total per minute, spread evenly: a virtual clock that what was used pushes ahead."""

    per_minute: int | None
    used_until: float = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self.used_until - now - _BURST_S) if self.per_minute else 0.0

    def take(self, amount: int, now: float, workers: int) -> None:
        if self.per_minute:
            seconds = amount * 60 * workers / self.per_minute
            self.used_until = max(self.used_until, now) + seconds


@dataclass(slots=True)
class _Circuit:
    """Open after a streak of failures; then one try at a time, until one succeeds."""

    limit: int
    patience_s: float
    streak: int = 0
    is_open: bool = False
    opened_at: float = 0.0
    until: float = 0.0
    first_at: float = 0.0
    pause_s: float = field(default=FIRST_PAUSE_S)

    def begin(self, now: float) -> None:
        if self.is_open:
            self.opened_at = now  # what began before says nothing about the try that begins now

    def close(self) -> None:
        self.streak, self.is_open, self.pause_s = 0, False, FIRST_PAUSE_S

    def note_failure(self, one: Try, now: float) -> float:
        """Return the seconds of the pause that begins now, 0 for none."""
        if self.is_open and one.began < self.opened_at:
            return 0.0
        self.streak += 1
        if self.streak < self.limit:
            return 0.0
        if not self.is_open:
            self.first_at = now
        pause_s, self.pause_s = self.pause_s, min(LONGEST_PAUSE_S, 2 * self.pause_s)
        self.is_open, self.opened_at, self.until = True, now, now + pause_s
        return pause_s

    def wait_s(self, now: float, in_flight: int) -> float:
        if not self.is_open:
            return 0.0
        if now - self.first_at >= self.patience_s:
            raise EndpointDownError(
                f"{UNAVAILABLE}: the endpoint of llm.base_url failed {self.streak} times in a row, "
                f"for {now - self.first_at:.0f} s without one answer (llm.circuit_s); start again "
                "when it is up: what is done is kept"
            )
        left = min(self.until, self.first_at + self.patience_s) - now
        return max(left, _LOOK_S if in_flight else 0.0)
