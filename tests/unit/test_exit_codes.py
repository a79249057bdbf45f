"""What the command line ends with, and what it says of an error."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from hltm_spark.cli.app import hltm, run_command
from hltm_spark.core.errors import (
    BatchesLeftError,
    BudgetReachedError,
    DataError,
    EmbeddingError,
    EndpointDownError,
    LeaseHeldError,
    LlmError,
    LlmStopError,
    ScopeNotFound,
    SettingsError,
    TooManyFailuresError,
)

EndsWith = Callable[[BaseException], int]

SLEEPING = """
import time, click
from hltm_spark.cli.app import hltm, main

@hltm.command()
def sleep() -> None:
    print("asleep", flush=True)
    time.sleep(60)

main(["sleep"])
"""


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> EndsWith:
    """Return a function that runs a verb which raises an error, and returns the exit code."""

    def run(error: BaseException) -> int:
        @click.command()
        def fail() -> None:
            raise error

        monkeypatch.setitem(hltm.commands, "fail", fail)
        return run_command(["fail"])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 2),
        (DataError("x"), 2),
        (LlmStopError("x"), 2),
        (ScopeNotFound("x"), 2),
        (LeaseHeldError("x"), 3),
        (BatchesLeftError("x"), 3),
        (BudgetReachedError("x"), 3),
        (KeyboardInterrupt(), 3),
        (TooManyFailuresError("x"), 1),
        (LlmError("unavailable: x"), 1),
        (EndpointDownError("unavailable: x"), 1),
        (EmbeddingError("x"), 1),
        (ZeroDivisionError("x"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "/full/x"), 1),
        (OSError(errno.EROFS, "Read-only file system", "/full/x"), 2),
    ],
)
def test_an_error_decides_the_exit_code(
    ends_with: EndsWith, error: BaseException, code: int
) -> None:
    assert ends_with(error) == code


def test_an_unexpected_error_does_not_show_its_message(
    ends_with: EndsWith, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_with(ValueError("text of a document"))
    ends_with(OSError(errno.EACCES, "Permission denied", "/full/x"))

    shown = capsys.readouterr().err
    assert "text of a document" not in shown
    assert "hltm: unexpected ValueError; set HLTM_DEBUG=1" in shown
    assert "hltm: cannot write /full/x: Permission denied" in shown


def test_sigterm_ends_a_verb_as_ctrl_c_does() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asleep\n"
        process.send_signal(signal.SIGTERM)
        _, shown = process.communicate(timeout=30)

    assert process.returncode == 3
    assert "hltm: stopped; what was paid for is kept" in shown


def test_help_shows_the_examples_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "hltm index --root .hltm" in lines
    assert not any("\\b" in line or "\b" in line for line in lines)
