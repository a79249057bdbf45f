"""One attempt of a task at a time, and the end of those whose run is dead."""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from hltm_spark.pipeline.claim import claim, wait_for_claims


def hold(folder: Path, told: Connection) -> None:
    with claim(folder, "stage.0"):
        told.send("held")
        time.sleep(600)


def test_a_claim_goes_with_its_process(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    holder = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, there))
    holder.start()
    assert here.recv() == "held"
    taken = threading.Event()

    def take() -> None:
        with claim(tmp_path, "stage.0"):
            taken.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    is_early = taken.wait(0.2)
    os.kill(holder.pid or 0, signal.SIGKILL)
    waiting.join(60)
    holder.join()

    assert not is_early
    assert taken.is_set()


def test_tasks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with claim(tmp_path, "stage.0"), claim(tmp_path, "stage.1"):
        pass


def test_orphans_are_waited_for_until_patience_ends(tmp_path: Path) -> None:
    wait_for_claims(tmp_path / "none", patience_s=60)
    with claim(tmp_path / "run", "stage.0"):
        wait_for_claims(tmp_path, patience_s=0.2)
    wait_for_claims(tmp_path, patience_s=60)
