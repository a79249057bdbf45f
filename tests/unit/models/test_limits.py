import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import EndpointDownError
from hltm_spark.models.limits import FIRST_PAUSE_S, CallLimiter, Try


@dataclass
class Clock:
    """Seconds that a test moves on."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def limiter(
    clock: Clock, workers: Callable[[], tuple[int, int]] = lambda: (0, 1), **llm: int
) -> CallLimiter:
    settings = LlmSettings(provider="openai", model="m", **llm)  # type: ignore[arg-type]
    return CallLimiter(settings, workers=workers, clock=clock)


def call(limits: CallLimiter, tokens: int = 1) -> Try:
    """Let one call through and return it, no longer in flight."""
    assert limits.wait_s() == 0
    with limits.turn(tokens) as one:
        return one


def answer(limits: CallLimiter, count: int) -> None:
    for _ in range(count):
        limits.answered(call(limits))


def test_no_more_calls_are_in_flight_than_the_limit() -> None:
    limits = limiter(Clock(), max_concurrency=2)

    with limits.turn(1):
        assert limits.wait_s() == 0
        with limits.turn(1):
            assert limits.wait_s() > 0
        assert limits.wait_s() == 0


@pytest.mark.parametrize(("total", "count"), [(16, 3), (64, 2), (7, 7), (100, 9)])
def test_the_shares_of_the_workers_are_the_whole_limit(total: int, count: int) -> None:
    shares = [
        limiter(Clock(), workers=lambda r=rank: (r, count), max_concurrency=total).window  # type: ignore[misc]
        for rank in range(count)
    ]

    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_worker_takes_over_the_share_of_those_that_left() -> None:
    clock, at_work = Clock(), [(1, 4)]
    limits = limiter(clock, workers=lambda: at_work[0], max_concurrency=64)
    before = limits.window

    at_work[0] = (0, 1)
    clock.now += 1

    assert (before, limits.window) == (16, 64)


def test_a_refusal_halves_what_is_in_flight_and_success_creeps_up() -> None:
    limits = limiter(Clock(), max_concurrency=16)

    limits.refused(call(limits))
    after_one = limits.window
    answer(limits, 3)
    crept = limits.window
    answer(limits, 500)

    assert (after_one, crept, limits.window) == (8, 11, 16)


def test_refusals_of_calls_that_began_before_the_last_cut_count_as_one() -> None:
    clock = Clock()
    limits = limiter(clock, max_concurrency=16)
    began = [call(limits) for _ in range(10)]

    clock.now += 1
    for one in began:
        limits.refused(one)

    assert limits.window == 8


def test_a_refusal_now_and_then_takes_nothing_away() -> None:
    clock = Clock()
    limits = limiter(clock, max_concurrency=16)

    windows = []
    for _ in range(20):
        answer(limits, 19)
        clock.now += 1
        limits.refused(call(limits))
        windows.append(limits.window)

    assert windows == [16] * 20


def test_answers_of_long_ago_make_up_for_no_more_than_a_round_of_refusals() -> None:
    clock = Clock()
    limits = limiter(clock, max_concurrency=32)
    answer(limits, 10_000)

    windows = []
    for _ in range(5):
        clock.now += 1
        limits.refused(call(limits))
        windows.append(limits.window)

    assert windows == [32, 32, 32, 16, 8]


def test_an_endpoint_with_room_for_less_is_soon_asked_for_less() -> None:
    clock = Clock()
    limits = limiter(clock, max_concurrency=32)
    answer(limits, 100)

    for _ in range(20):  # every other call is one too many
        clock.now += 1
        limits.refused(call(limits))
        answer(limits, 1)

    assert limits.window <= 4


def test_one_call_is_always_let_through() -> None:
    clock = Clock()
    limits = limiter(clock, max_concurrency=2)

    for _ in range(10):
        clock.now += 1
        limits.refused(call(limits))

    assert limits.window == 1


def test_requests_a_minute_are_spread_over_the_minute_and_shared() -> None:
    clock, begun = Clock(), 0
    limits = limiter(clock, workers=lambda: (0, 2), requests_per_minute=120, max_concurrency=99)

    while clock.now < 1060:
        if wait_s := limits.wait_s():
            clock.now += wait_s
        else:
            call(limits)
            begun += 1

    assert 60 <= begun <= 64


def test_tokens_a_minute_count_what_was_really_used() -> None:
    clock = Clock()
    limits = limiter(clock, tokens_per_minute=6000)

    limits.answered(call(limits, tokens=100), tokens=400)
    expensive = limits.wait_s()
    clock.now += 10
    limits.answered(call(limits, tokens=400), tokens=100)

    assert expensive == pytest.approx(2.0)
    assert limits.wait_s() == 0


def test_a_streak_of_failures_pauses_all_and_then_lets_one_try_through() -> None:
    clock = Clock()
    limits = limiter(clock, circuit_failures=3)

    for _ in range(3):
        limits.failed(call(limits))
    paused_s = limits.wait_s()
    clock.now += FIRST_PAUSE_S

    assert paused_s == FIRST_PAUSE_S
    with limits.turn(1) as probe:
        assert limits.wait_s() > 0
        limits.answered(probe)
        assert limits.wait_s() == 0


def test_an_answer_in_between_is_no_streak() -> None:
    limits = limiter(Clock(), circuit_failures=3)

    for _ in range(5):
        limits.failed(call(limits))
        limits.failed(call(limits))
        answer(limits, 1)

    assert limits.wait_s() == 0


def test_failures_of_calls_that_began_before_the_pause_do_not_lengthen_it() -> None:
    clock = Clock()
    limits = limiter(clock, circuit_failures=2)
    began = [call(limits) for _ in range(10)]

    clock.now += 1
    for one in began:
        limits.failed(one)

    assert limits.wait_s() == FIRST_PAUSE_S


def test_a_circuit_that_stays_open_stops_the_run() -> None:
    clock = Clock()
    limits = limiter(clock, circuit_failures=2, circuit_s=60)
    for _ in range(2):
        limits.failed(call(limits))

    pauses = []

    def go_on() -> None:
        while len(pauses) < 20:
            pauses.append(limits.wait_s())
            clock.now += pauses[-1]
            limits.failed(call(limits))

    with pytest.raises(EndpointDownError, match=r"failed \d+ times in a row, for \d+ s"):
        go_on()

    assert pauses == [5, 10, 20, 25]


def test_threads_that_wait_go_on_one_by_one() -> None:
    settings = LlmSettings(provider="openai", model="m", max_concurrency=3)
    limits, peak, here = CallLimiter(settings), 0, 0
    lock, release = threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal peak, here
        with limits.turn(1):
            with lock:
                here += 1
                peak = max(peak, here)
            release.wait(0.01)
            with lock:
                here -= 1

    threads = [threading.Thread(target=work) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert peak == 3
