"""`hltm index` with a real model: its answers may be anything, what is recorded of them may not.

The model is far too small for these prompts. Nothing here expects a good memory of it: what must
hold is that every paid answer is on record, that nothing unreadable becomes a memory, that failures
have a reason and fail alone, and that the next run pays for them and for nothing else.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.models.llm import FAILURE_KINDS
from hltm_spark.pipeline.files import read_rows
from hltm_spark.pipeline.tables import DOCUMENTS, FAILURES, LLM_CALLS, MEMORY, RUNS, Table
from tests.builders import raw_document
from tests.llm.llama_server import CONTEXT_TOKENS, KEY, MODEL, Exchange, LlamaServer, serve_llama

CHECKOUT = Path(__file__).resolve().parents[2]
SECRET = "Zugzwang"  # in every document; in no log and no message
ROWS = [
    raw_document("d1", project="p1", text=f"Title: Nurse\nLocation: Turku\nManager: {SECRET}"),
    raw_document("d2", project="p2", text=f"Title: Baker\nLocation: Oulu\nManager: {SECRET}"),
]
LONG = raw_document("d3", project="p3", text=f"Manager: {SECRET}\n" + "Oulu. " * CONTEXT_TOKENS)


class Root:
    """A storage root, and the command line on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def copy(self, path: Path) -> "Root":
        """Return a root with the same documents."""
        return Root(Path(shutil.copytree(self.path, path)))

    def hltm(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command, as a user does."""
        command = [sys.executable, "-m", "hltm_spark.cli", *arguments, "--root", str(self.path)]
        environment = {**os.environ, "OPENAI_API_KEY": KEY}
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start_index(self, base_url: str, **settings: Any) -> subprocess.Popen[str]:
        """Start `hltm index` with the model of an endpoint."""
        given = {
            "provider": "openai",
            "model": MODEL,
            "base_url": base_url,
            "output_tokens_parameter": "max_tokens",
            "max_output_tokens": 256,
            "temperature": 0.0,
            "timeout_s": 600,
            "max_concurrency": 4,
            **settings,
        }
        overrides = [f"llm.{name}={value}" for name, value in given.items()]
        options = [part for override in overrides for part in ("--set", override)]
        return self.hltm("index", *options)

    def index(self, base_url: str, **settings: Any) -> tuple[int, str]:
        """Run `hltm index` and return its exit code and what it said."""
        return ended(self.start_index(base_url, **settings))

    def rows(self, table: Table, *columns: str) -> list[dict[str, Any]]:
        """Return columns of a table, all of them unless given; in no order."""
        return read_rows(table.files(str(self.path)), columns or list(table.columns))


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a command, and return its exit code and what it said: nothing that it must not."""
    output, said = running.communicate(timeout=600)
    for text in (output, said):
        assert "Traceback" not in text
        assert SECRET not in text
        assert KEY not in text
    return running.returncode, said


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Root:
    scratch = tmp_path_factory.mktemp("ingested")
    file = scratch / "input.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in [*ROWS, LONG]), encoding="utf-8")
    root = Root(scratch / "root")
    code, said = ended(root.hltm("ingest", "--input", str(file)))
    assert code == 0, said
    return root


def asked_key(call: dict[str, Any]) -> tuple[str, str]:
    """Return what a paid answer belongs to: its request, or the one that it is another try of."""
    return call["tenant_id"], call["repair_of"] or call["request_hash"]


def answers_of(exchanges: Sequence[Exchange]) -> Counter[tuple[str, int, int]]:
    """Return finish reason and tokens of what the server answered."""
    return Counter(
        (
            one.answer["choices"][0]["finish_reason"],
            one.answer["usage"]["prompt_tokens"],
            one.answer["usage"]["completion_tokens"],
        )
        for one in exchanges
    )


def check_records(root: Root, answered: Sequence[Exchange]) -> None:
    """Hold the tables against what the server answered in all runs."""
    calls = root.rows(LLM_CALLS)
    recorded = Counter(
        (c["finish_reason"], c["prompt_tokens"], c["completion_tokens"]) for c in calls
    )
    assert recorded == answers_of(answered)
    assert not [c for c in calls if c["is_usable"] and c["finish_reason"] != "stop"]
    failures = root.rows(FAILURES)
    assert {failure["kind"] for failure in failures} <= set(FAILURE_KINDS)
    usable = {call["node_id"] for call in calls if call["is_usable"]}
    documents = {row["doc_id"] for row in root.rows(DOCUMENTS, "doc_id")}
    for node in root.rows(MEMORY):
        has_views = bool(node["summary"] or node["facets"] or node["question_answers"])
        assert has_views <= (node["node_id"] in usable), "a memory stands on a usable answer"
        for item in [*node["facets"], *node["question_answers"]]:
            assert set(item["documents"]) <= documents


def test_a_run_records_what_was_paid_and_the_next_pays_for_failures_alone(
    llama: LlamaServer, ingested: Root, tmp_path: Path
) -> None:
    root = ingested.copy(tmp_path / "root")

    code, said = root.index(llama.base_url)

    first = list(llama.answered)
    calls = root.rows(LLM_CALLS)
    failed = {row["node_id"]: row for row in root.rows(FAILURES)}
    check_records(root, first)
    assert "does not take json_schema" in said
    assert {chat.response_format for chat in first} == {"json_object"}
    assert failed["acme/s1/p3"]["kind"] == "too_long"
    assert not [call for call in calls if call["node_id"] == "acme/s1/p3"]
    assert {call["node_id"] for call in calls} >= {"acme/s1/p1", "acme/s1/p2"}
    assert code == 1, "p3 alone is more than a fifth of the tree, with what stands above it"
    assert "budgets.max_failure_ratio" in said
    runs = root.rows(RUNS, "status", "calls", "prompt_tokens", "completion_tokens")
    assert [(run["status"], run["calls"]) for run in runs] == [("failed", len(first))]
    assert runs[0]["prompt_tokens"] == sum(c["prompt_tokens"] for c in calls)

    llama.forget()
    code, said = root.index(llama.base_url)

    second = list(llama.answered)
    check_records(root, [*first, *second])
    usable = {asked_key(call) for call in calls if call["is_usable"]}
    again = [c for c in root.rows(LLM_CALLS) if c["run_id"] != calls[0]["run_id"]]
    assert code == 1
    assert len(again) == len(second)
    assert not usable & {asked_key(call) for call in again}


def test_answers_that_were_all_cut_off_leave_no_memory(
    llama: LlamaServer, ingested: Root, tmp_path: Path
) -> None:
    root = ingested.copy(tmp_path / "root")

    code, said = root.index(llama.base_url, max_output_tokens=8, structured_output="text")

    check_records(root, llama.answered)
    tried = Counter(chat.body["max_tokens"] for chat in llama.answered)
    assert tried[8] == tried[16] >= 2
    assert {c["finish_reason"] for c in root.rows(LLM_CALLS)} == {"length"}
    assert {f["kind"] for f in root.rows(FAILURES)} <= {"truncated", "too_long"}
    assert not [n for n in root.rows(MEMORY) if n["status"] == "complete" or n["summary"]]
    assert code == 1
    assert "cut off at the output limit" in said


def test_a_server_that_dies_ends_the_run_and_the_next_one_goes_on(
    llama: LlamaServer, ingested: Root, tmp_path: Path
) -> None:
    root = ingested.copy(tmp_path / "root")
    patience = {"circuit_failures": 2, "circuit_s": 2, "max_concurrency": 2}

    with serve_llama(tmp_path) as dying:
        running = root.start_index(dying.base_url, **patience)
        assert dying.has_request.wait(timeout=120)
        dying.kill()
        code, said = ended(running)
        paid = list(dying.answered)

    check_records(root, paid)
    assert code == 1
    assert "the endpoint of llm.base_url failed" in said
    assert "start again when it is up: what is done is kept" in said
    assert not root.rows(MEMORY)

    code, said = root.index(llama.base_url)

    check_records(root, [*paid, *llama.answered])
    assert "budgets.max_failure_ratio" in said
    assert root.rows(MEMORY)
