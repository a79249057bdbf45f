"""The README's first command and its Python example, as a newcomer runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hltm_spark.core.conf_file import load_settings
from serving import MemoryReader

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shown() -> str:
    """Return what the demo prints."""
    done = subprocess.run(
        [sys.executable, "demo/run.py"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_demo_answers_its_questions_right(shown: str) -> None:
    questions = json.loads((CHECKOUT / "samples/hiring/questions.json").read_text("utf-8"))[:3]

    for question in questions:
        answer = shown.rsplit(question["question"], maxsplit=1)[-1].split("because:", maxsplit=1)[0]
        assert any(text.lower() in answer.lower() for text in question["accept"])


def test_the_demo_writes_only_the_edited_leaves_and_their_ancestors(shown: str) -> None:
    edits = (CHECKOUT / "samples/hiring/edits.jsonl").read_text("utf-8").splitlines()
    paths = [(e["contract"], e["seat"], e["project"]) for e in map(json.loads, edits)]
    expected = {"/".join(path[:n]) for path in paths for n in (1, 2, 3)}

    written = shown.split(" wrote:")[1].split("\n==", maxsplit=1)[0].split()

    assert set(written) == expected


def test_the_readme_example_runs_against_the_demo(shown: str) -> None:
    assert shown
    code = re.findall(r"```python\n(.*?)```", (CHECKOUT / "README.md").read_text("utf-8"), re.S)[0]
    scope = "orrelund-energy/backend-engineer"
    code = code.replace(".hltm/shards", str(CHECKOUT / ".demo/shards")).replace("SEAT_ID", scope)

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )

    assert "Tampere" in done.stdout
    assert scope in done.stdout


def test_stored_answers_follow_their_citation_to_documents(shown: str) -> None:
    assert shown
    settings = load_settings(CHECKOUT / "conf/hiring.toml")
    scope = MemoryReader.open(CHECKOUT / ".demo/shards", settings=settings).scope("orrelund-energy")

    answer = scope.answer("Is visa sponsorship offered?")

    assert answer.citation
    assert {e.doc_id for e in scope.evidence(answer)} == set(answer.documents)
