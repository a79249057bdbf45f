"""A small run works in this process, a large one with Spark: both write the same."""

import hashlib
from pathlib import Path
from typing import Any

from chispa import assert_df_equality

from hltm_spark.pipeline.tables import LLM_CALLS, MEMORY
from tests.builders import raw_document
from tests.spark.conftest import MakeMemory, Memory

WORDS = ["Turku", "hybrid", "Python", "remote", "visa", "budget", "senior", "lab", "pay", "desk"]


BUDGET = 2000
"""The parent prompt alone takes about 1,300 tokens: some items more need groups."""


def document(doc_id: str, tenant: str, seat: str, project: str | None = None, **fields: Any) -> Any:
    return raw_document(doc_id, contract=tenant, seat=seat, project=project, **fields)


def rows() -> list[dict[str, Any]]:
    """A wide seat with a long document of its own, in two tenants with equal keys."""
    made = [document("nordic-1", "nordic", "s1", "p01", text="Location: Turku")]
    for number in range(12):
        text = f"Location: {WORDS[number % len(WORDS)]}\nHeadcount: {number}\nA role in {number}."
        made.append(document(f"acme-{number}", "acme", "s1", f"p{number:02d}", text=text))
    long = "\n\n".join(f"Paragraph {n} about {WORDS[n % 10]}: it is item {n}." for n in range(60))
    return [*made, document("acme-long", "acme", "s1", None, text=long)]


def test_a_large_run_builds_what_small_ones_updated(make_memory: MakeMemory) -> None:
    budget = {"max_input_tokens": BUDGET}
    small = make_memory(budgets=budget)
    small.ingest(*rows())
    small.run()
    changed = document("acme-3", "acme", "s1", "p03", text="Location: Espoo\nHeadcount: 31")
    small.ingest(changed, {**rows()[5], "op": "delete"})
    small.run("update", is_publishing=True)

    large = make_memory(budgets={**budget, "small_run_nodes": 0}, like=small)
    gone = rows()[5]["doc_id"], changed["doc_id"]
    large.ingest(changed, *(row for row in rows() if row["doc_id"] not in gone))
    large.run(is_publishing=True)

    trees = [memory.read(MEMORY).drop("run_id") for memory in (small, large)]
    assert_df_equality(*trees, ignore_row_order=True)
    assert _calls(large) < _calls(small)
    assert len(_calls(large)) > 20, "the wide seat was read in groups"
    assert _bytes(small) == _bytes(large)


def _calls(memory: Memory) -> set[str]:
    return {row[0] for row in memory.read(LLM_CALLS).select("request_hash").collect()}


def _bytes(memory: Memory) -> dict[str, str]:
    found = {}
    for file in sorted(memory.root.shards.rglob("*")):
        if file.is_file() and file.name not in {"provenance.json"}:
            name = str(file.relative_to(memory.root.shards))
            found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return found
