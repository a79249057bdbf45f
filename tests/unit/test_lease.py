"""One run at a time on a root."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.core.errors import LeaseHeldError, LeaseLostError
from hltm_spark.pipeline import lease as lease_module
from hltm_spark.pipeline import processes
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.root import Root
from tests.unit.lease_rig import ANSWER_S, LONG_S, OtherRun

HAS_PROC = Path("/proc/self/stat").exists()  # only there a dead child can be told from a live one


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(path=str(tmp_path), salt="s")


@pytest.fixture
def start_run(root: Root) -> Iterator[Callable[[], OtherRun]]:
    runs: list[OtherRun] = []

    def start() -> OtherRun:
        runs.append(OtherRun(root))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def hold(root: Root, *, ttl_s: float = LONG_S, wait_s: float | None = 0) -> Any:
    return hold_lease(root, verb="index", run_id="r2", ttl_s=ttl_s, wait_s=wait_s)


def can_take(root: Root) -> bool:
    try:
        with hold(root):
            return True
    except LeaseHeldError:
        return False


def at(seconds_ago: float) -> str:
    return lease_module._utc(time.time() - seconds_ago).isoformat()


def leave_lease(
    root: Root,
    *,
    ago_s: float = 0,
    renewed_ago_s: float | None = None,
    ttl_s: float = LONG_S,
    **process: Any,
) -> None:
    """Leave the first epoch's files as another host did, or the process with these fields."""
    root.folder("lease").mkdir()
    process = process or {"host": "elsewhere"}
    content = {
        "holder": {**processes.this_process().model_dump(), **process},
        "verb": "update",
        "run_id": "r1",
        "acquired_at": at(ago_s),
        "expires_at": at(ago_s - ttl_s),
    }
    epoch_file(root, 1).write_text(json.dumps(content))
    if renewed_ago_s is not None:
        renewal = {"renewed_at": at(renewed_ago_s), "expires_at": at(renewed_ago_s - ttl_s)}
        epoch_file(root, 1, "renewed").write_text(json.dumps(renewal))


def epoch_file(root: Root, epoch: int, ending: str = "json") -> Path:
    return root.folder("lease", f"{epoch:012d}.{ending}")


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_of_two_runs_that_race_exactly_one_holds_the_lease(
    root: Root, start_run: Callable[[], OtherRun]
) -> None:
    runs = [start_run(), start_run()]
    assert [run.ask("release") for run in runs] == ["released", "released"]  # both are up

    for epoch in range(1, 21):
        start = time.time() + 0.01
        for run in runs:
            run.tell("take", LONG_S, 0, start)
        won, lost = sorted((run.answer() for run in runs), key=lambda answer: answer[0] != "e")
        assert won == f"epoch {epoch}"
        assert lost.startswith("LeaseHeldError: ")
        for run in runs:
            run.ask("release")


def test_of_many_threads_that_race_exactly_one_holds_the_lease(root: Root) -> None:
    threads, answers = 8, []
    start, done = threading.Barrier(threads), threading.Barrier(threads)

    def race() -> None:
        start.wait()
        try:
            with hold(root) as lease:
                answers.append(lease.epoch)
                done.wait()
        except LeaseHeldError:
            done.wait()

    runs = [threading.Thread(target=race) for _ in range(threads)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert answers == [1]


@pytest.mark.parametrize("is_waited_for", [True, False] if HAS_PROC else [True])
def test_the_lease_of_a_killed_run_is_taken_over_at_once(
    root: Root, start_run: Callable[[], OtherRun], *, is_waited_for: bool
) -> None:
    other = start_run()
    assert other.take() == "epoch 1"
    other.signal(signal.SIGKILL)
    if is_waited_for:
        other.process.wait()
    else:
        other.await_death()

    with hold(root) as lease:
        assert lease.epoch == 2


def test_a_run_waits_for_the_holder_and_then_says_who_it_is(
    root: Root, start_run: Callable[[], OtherRun], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hltm_spark")
    other = start_run()
    other.take()
    begin = time.monotonic()

    with pytest.raises(LeaseHeldError, match=rf"hltm update \(pid {other.pid} on host .* run ag"):
        hold(root, wait_s=0.3).__enter__()

    assert time.monotonic() - begin >= 0.3
    assert len([line for line in caplog.messages if f"pid {other.pid}" in line]) == 1
    assert other.ask("check") == "may write"


def test_a_waiting_run_goes_on_when_the_holder_ends(
    root: Root, start_run: Callable[[], OtherRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, pauses = start_run(), []
    other.take()

    def release_at_the_third(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.ask("release")

    monkeypatch.setattr(time, "sleep", release_at_the_third)
    with hold(root, wait_s=LONG_S) as lease:
        assert lease.epoch == 2
    assert len(pauses) == 3
    assert pauses == sorted(set(pauses))


def test_a_suspended_run_whose_lease_was_taken_over_may_not_write(
    root: Root, start_run: Callable[[], OtherRun]
) -> None:
    other = start_run()
    assert other.take(ttl_s=1) == "epoch 1"
    other.signal(signal.SIGSTOP)

    with hold(root, wait_s=ANSWER_S) as lease:
        other.signal(signal.SIGCONT)

        answer = other.ask("check")
        lease.check()

    assert answer.startswith("LeaseLostError: this run's lease was taken over (epoch 2 by hltm in")
    assert f"pid {os.getpid()}" in answer
    assert other.ask("release") == "released"


def test_a_run_that_was_suspended_too_long_may_not_write_even_if_nobody_took_over(
    root: Root, start_run: Callable[[], OtherRun]
) -> None:
    other = start_run()
    other.take(ttl_s=1)
    other.signal(signal.SIGSTOP)
    time.sleep(1.2)
    other.signal(signal.SIGCONT)

    assert "lapsed: epoch 1 was not renewed" in other.ask("check")
    assert "lapsed: epoch 1 was not renewed" in other.ask("check")


def test_a_run_that_lives_renews(root: Root) -> None:
    with hold(root, ttl_s=4) as lease:
        eventually(epoch_file(root, 1, "renewed").exists)
        lease.check()

        renewal = json.loads(epoch_file(root, 1, "renewed").read_text())
        holding = json.loads(epoch_file(root, 1).read_text())
    assert renewal["renewed_at"] > holding["acquired_at"]


def test_a_run_that_cannot_renew_loses_its_lease(
    root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lease_module, "_replace", fail)

    def is_lost() -> bool:
        try:
            lease.check()
        except LeaseLostError:
            return True
        return False

    with hold(root, ttl_s=0.4) as lease:
        eventually(is_lost)

    assert "lease epoch 1 not renewed: No space left on device" in caplog.messages
    assert caplog.messages[-1] == "lease epoch 1 not released: No space left on device"


def test_a_run_that_fails_releases(root: Root) -> None:
    with pytest.raises(ZeroDivisionError), hold(root):
        raise ZeroDivisionError

    assert epoch_file(root, 1, "released").exists()
    assert can_take(root)


def test_asking_for_the_same_root_again_is_an_error_at_once(root: Root, tmp_path: Path) -> None:
    inner = Root(path=str(tmp_path / "inner"), salt="s")

    with hold(root), hold(inner):
        with pytest.raises(RuntimeError, match=r"holds the lease of .* already"):
            hold(root, wait_s=LONG_S).__enter__()
        with pytest.raises(RuntimeError, match=r"holds the lease of .* already"):
            hold(inner, wait_s=LONG_S).__enter__()

    assert can_take(root)
    assert can_take(inner)


def test_a_lease_without_seconds_is_refused(root: Root) -> None:
    with pytest.raises(ValueError, match="ttl_s must be positive, got 0"):
        hold(root, ttl_s=0).__enter__()


@pytest.mark.parametrize(
    ("ages", "is_free"),
    [
        ({"ago_s": 0}, False),
        ({"ago_s": 2 * LONG_S}, True),
        ({"ago_s": 2 * LONG_S, "renewed_ago_s": 0}, False),
        ({"ago_s": 3 * LONG_S, "renewed_ago_s": 2 * LONG_S}, True),
        ({"ago_s": 0, "renewed_ago_s": 2 * LONG_S}, True),  # the clock was set back in between
        ({"ago_s": LONG_S + 0.5}, False),  # another host's clock differs a little
        ({"ago_s": 0, "renewed_ago_s": -2 * LONG_S}, False),
    ],
)
def test_the_last_renewal_tells_whether_another_hosts_lease_expired(
    root: Root, monkeypatch: pytest.MonkeyPatch, ages: dict[str, float], *, is_free: bool
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    leave_lease(root, **ages)

    assert can_take(root) == is_free


def test_a_renewal_in_the_future_counts_as_now(root: Root) -> None:
    leave_lease(root, renewed_ago_s=-LONG_S, ttl_s=0.3)
    begin = time.monotonic()

    with hold(root, wait_s=ANSWER_S):
        assert time.monotonic() - begin >= 0.3


def test_waiting_as_long_as_the_ttl_outlasts_a_lease_that_nobody_renews(root: Root) -> None:
    leave_lease(root, ttl_s=0.3)

    with hold(root, ttl_s=0.3, wait_s=None) as lease:
        assert lease.epoch == 2


@pytest.mark.parametrize("other", ["host", "boot_id", "pid_namespace"])
def test_a_process_of_elsewhere_is_never_called_dead(root: Root, other: str) -> None:
    process: dict[str, Any] = {"pid": dead_pid(), other: "elsewhere"}
    leave_lease(root, **process)

    assert not can_take(root)


def test_a_pid_that_another_process_has_now_is_a_dead_holder(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_state_and_start", lambda pid: ("S", "8"))
    leave_lease(root, pid=os.getpid(), started="7")

    assert can_take(root)


def test_without_proc_a_process_is_judged_by_its_pid(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_text_or_none", "_link_or_none"):
        monkeypatch.setattr(processes, name, lambda file: None)
    leave_lease(root, pid=os.getpid())
    assert not can_take(root)

    shutil.rmtree(root.folder("lease"))
    leave_lease(root, pid=dead_pid())
    assert can_take(root)


def test_another_users_process_is_alive(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    leave_lease(root, pid=os.getpid())

    assert not can_take(root)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"verb": 7}', b"\xff\x00"])
def test_a_torn_lease_file_blocks_for_one_ttl_only(root: Root, content: bytes) -> None:
    leave_lease(root)
    epoch_file(root, 1).write_bytes(content)
    with pytest.raises(LeaseHeldError, match=r"an unknown run \(epoch 1, its file is unreadable\)"):
        hold(root).__enter__()

    long_ago = time.time() - 2 * LONG_S
    os.utime(epoch_file(root, 1), (long_ago, long_ago))

    assert can_take(root)


def test_a_torn_renewal_counts_from_when_it_was_written(root: Root) -> None:
    leave_lease(root, ago_s=2 * LONG_S)
    renewed = epoch_file(root, 1, "renewed")
    renewed.touch()
    assert not can_take(root)

    long_ago = time.time() - 2 * LONG_S
    os.utime(renewed, (long_ago, long_ago))

    assert can_take(root)


def test_the_files_of_the_last_three_epochs_stay(root: Root) -> None:
    for _ in range(5):
        with hold(root):
            pass
    epoch_file(root, 3, "abc.part").touch()  # left by a kill

    with hold(root):
        names = {file.name.partition(".")[0] for file in root.folder("lease").iterdir()}

    assert names == {"series", *(f"{epoch:012d}" for epoch in (4, 5, 6))}


def test_an_epoch_that_was_taken_and_removed_is_not_given_out_again(root: Root) -> None:
    for _ in range(5):
        with hold(root):
            pass
    late = lease_module._Queue(root.folder("lease"), verb="update", run_id="r1", ttl_s=LONG_S)

    assert late._claim(2) is None
    assert not epoch_file(root, 2).exists()


def test_a_run_whose_lease_files_were_removed_may_not_write(root: Root) -> None:
    with hold(root) as lease:
        shutil.rmtree(root.folder("lease"))
        with pytest.raises(LeaseLostError, match=r"lease file is gone \(epoch 1 "):
            lease.check()


def test_nothing_is_written_outside_the_lease_folder(root: Root, tmp_path: Path) -> None:
    with hold(root):
        pass

    assert [file.name for file in tmp_path.iterdir()] == ["lease"]
