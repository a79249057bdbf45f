"""The README's commands, run as they are written."""

import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hltm_spark.cli.app import run_command

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_commands_under_build_a_memory_run_as_written(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert spark
    section = (CHECKOUT / "README.md").read_text("utf-8").split("## Build a memory")[1]
    block = re.findall(r"```sh\n(.*?)```", section, re.S)[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    (tmp_path / "samples").symlink_to(CHECKOUT / "samples")
    monkeypatch.chdir(tmp_path)

    for program, *arguments in commands:
        assert program == ".venv/bin/hltm"
        assert run_command(arguments) == 0, arguments

    shown = capsys.readouterr().out
    assert "equal to a rebuild" in shown
    assert {command[1] for command in commands} >= {"ingest", "index", "update", "verify", "runs"}
    assert [path.name for path in tmp_path.iterdir() if path.name != "samples"] == [".hltm"]
