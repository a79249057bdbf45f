"""The nearline loop, with a clock that moves only when the loop sleeps or a cycle works."""

import logging
import os
import signal
import threading
import time
from typing import Any

import pytest

from hltm_spark.core.errors import (
    BudgetReachedError,
    DataError,
    EmbeddingError,
    LeaseHeldError,
    LeaseLostError,
    LlmStopError,
    MissingExtraError,
    PromptError,
    SettingsError,
)
from hltm_spark.pipeline.follow import follow, parse_duration, stop_on_signals


class Loop:
    """Cycles that take so many seconds or fail, one after the other; then the loop is stopped."""

    def __init__(self, *cycles: float | Exception) -> None:
        self.now = 100.0
        self.starts: list[float] = []
        self.stop = threading.Event()
        self._cycles = list(cycles)

    def run(self, **options: Any) -> list[float]:
        """Return the starts of the cycles, in seconds since the first."""
        follow(
            self.cycle,
            stop=self.stop,
            clock=lambda: self.now,
            sleep=self.sleep,
            **{"every_s": 60, **options},
        )
        return self.starts

    def cycle(self) -> None:
        self.starts.append(self.now - 100)
        done = self._cycles.pop(0)
        if not self._cycles:
            self.stop.set()
        if isinstance(done, Exception):
            raise done
        self.now += done

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_cycles_begin_at_the_interval() -> None:
    assert Loop(5, 20, 0, 1).run() == [0, 60, 120, 180]


def test_a_long_cycle_is_followed_at_once_by_one_and_not_by_a_backlog() -> None:
    assert Loop(5, 200, 5, 5).run() == [0, 60, 260, 320]


def test_no_interval_means_no_pause() -> None:
    assert Loop(1, 2, 3).run(every_s=0) == [0, 1, 3]


def test_a_failed_cycle_is_tried_again_later_and_later() -> None:
    failures = [EmbeddingError("no") for _ in range(7)]

    assert Loop(*failures, 0, 0).run() == [0, 60, 180, 420, 900, 1500, 2100, 2700, 2760]


def test_a_success_ends_a_row_of_failures() -> None:
    cycles: list[float | Exception] = [ValueError(), ValueError(), 0, ValueError(), ValueError(), 0]

    assert Loop(*cycles).run(max_failures=3) == [0, 60, 180, 240, 300, 420]


def test_the_last_of_too_many_failures_is_raised() -> None:
    loop = Loop(EmbeddingError("first"), ValueError("second"), LeaseLostError("third"), 0)

    with pytest.raises(LeaseLostError, match="third"):
        loop.run(max_failures=3)

    assert len(loop.starts) == 3


@pytest.mark.parametrize(
    "error",
    [SettingsError, PromptError, DataError, MissingExtraError, LlmStopError, KeyboardInterrupt],
)
def test_what_another_try_cannot_help_is_raised_at_once(error: type[BaseException]) -> None:
    loop = Loop(error("no"), 0)  # type: ignore[arg-type]
    if error is KeyboardInterrupt:
        loop.cycle = _interrupt  # type: ignore[method-assign]

    with pytest.raises(error):
        loop.run()

    assert len(loop.starts) <= 1


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_root_in_use_is_no_failure() -> None:
    held = [LeaseHeldError("held") for _ in range(5)]

    assert Loop(*held, 0).run(max_failures=1) == [0, 60, 120, 180, 240, 300]


def test_a_cycle_that_its_budget_stopped_is_no_failure_and_ends_a_row_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cycles: list[float | Exception] = [ValueError(), BudgetReachedError("10 calls"), ValueError()]

    assert Loop(*cycles, 0).run(max_failures=2) == [0, 60, 120, 180]
    assert "cycle stopped by its budget: BudgetReachedError: 10 calls" in caplog.messages


def test_a_failure_is_one_line_without_a_foreign_message(caplog: pytest.LogCaptureFixture) -> None:
    Loop(EmbeddingError("endpoint\n  gave 3"), ValueError("Aino earns 5"), 0).run()

    assert caplog.messages == [
        "cycle failed, 1 of 10 in a row: EmbeddingError: endpoint gave 3; next try in 60 s",
        "cycle failed, 2 of 10 in a row: ValueError; next try in 120 s",
    ]


def test_no_cycle_begins_after_stop() -> None:
    loop = Loop(0)
    loop.stop.set()

    assert loop.run() == []


def test_stop_ends_the_wait() -> None:
    stop, begun = threading.Event(), threading.Event()
    loop = threading.Thread(target=follow, args=(begun.set,), kwargs={"every_s": 999, "stop": stop})
    loop.start()
    assert begun.wait(60)

    stop.set()

    loop.join(60)
    assert not loop.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_loop_between_cycles(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="hltm_spark")
    ended: list[bool] = []
    before = signal.getsignal(number)

    def cycle() -> None:
        os.kill(os.getpid(), number)
        assert stop.wait(60)
        ended.append(True)

    with stop_on_signals() as stop:
        follow(cycle, every_s=999, stop=stop)

    assert ended == [True]
    assert signal.getsignal(number) is before


def test_a_signal_ends_the_wait() -> None:
    with stop_on_signals() as stop:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        follow(lambda: None, every_s=999, stop=stop)
        timer.join()


def test_a_second_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def cycle() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt), stop_on_signals() as stop:
        follow(cycle, every_s=999, stop=stop)

    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_are_put_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(ZeroDivisionError), stop_on_signals():
        raise ZeroDivisionError

    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("5m", 300), ("1h", 3600), ("90", 90), (" 0.5s ", 0.5), ("1.5h", 5400)],
)
def test_a_duration_is_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "0", "0s", "-5s", "5 m", "1d", "1h30m", "1e3", "inf", "٣s", "9999999h", "5M"]
)
def test_another_duration_names_the_forms(text: str) -> None:
    with pytest.raises(SettingsError, match=r"60s, 5m, 1h or 90 \(seconds\)"):
        parse_duration(text)
