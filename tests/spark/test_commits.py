"""One run at a time on a root, and what stops a run that lost its lease."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hltm_spark.cli.app import run_command
from hltm_spark.core.errors import LeaseLostError
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.files import local_rows
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.tables import REJECTS
from tests.builders import raw_document
from tests.spark.conftest import Memory

HOLD = """
import sys, time
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.root import open_root
with hold_lease(open_root(sys.argv[1]), verb="index", run_id="other"):
    print("held", flush=True)
    time.sleep(600)
"""


@dataclass
class HeldLease:
    """A lease that never notices that it was lost: what a suspended process believes."""

    epoch: int
    series: str = "test"

    def check(self) -> None:
        pass


def test_delta_skips_the_commit_of_an_earlier_epoch(memory: Memory) -> None:
    spark, root = memory.spark, memory.root.path
    row = dict.fromkeys(REJECTS.columns, "x")

    for epoch in (5, 4, 6):
        commits = Commits(spark, root, HeldLease(epoch))  # type: ignore[arg-type]
        commits.append(REJECTS, local_rows(spark, [{**row, "row": str(epoch)}], REJECTS.schema))

    assert {r["row"] for r in memory.read(REJECTS).collect()} == {"5", "6"}


def test_a_run_whose_lease_was_taken_over_writes_nothing(memory: Memory) -> None:
    spark, root = memory.spark, memory.root
    row = dict.fromkeys(REJECTS.columns, "x")
    with hold_lease(root, verb="index", run_id="one") as lease:
        later = root.folder("lease", f"{lease.epoch + 1:012d}.json")
        later.write_text("{}", encoding="utf-8")

        with pytest.raises(LeaseLostError, match="taken over"):
            Commits(spark, root.path, lease).append(
                REJECTS, local_rows(spark, [row], REJECTS.schema)
            )

    assert memory.read(REJECTS).count() == 0


def test_a_verb_on_a_root_in_use_says_who_holds_it_and_exits_3(
    memory: Memory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(raw_document()), encoding="utf-8")
    command = [sys.executable, "-c", HOLD, memory.root.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        arguments = ["ingest", "--input", str(file), "--root", memory.root.path]
        arguments += ["--set", "storage.lease_ttl_s=1"]

        assert run_command(arguments) == 3
        assert "in use by hltm index" in capsys.readouterr().err

        other.kill()
    assert run_command(arguments) == 0
