"""A small run works in this process, a large one with Spark: both write the same."""

import hashlib
from pathlib import Path
from typing import Any

from chispa import assert_df_equality

from hltm_spark.pipeline.tables import EMBEDDINGS, LLM_CALLS, MEMORY
from tests.builders import raw_document
from tests.spark.conftest import MakeMemory, Memory

WORDS = ["Turku", "hybrid", "Python", "remote", "visa", "budget", "senior", "lab", "pay", "desk"]


BUDGET = 1635
"""It leaves about 680 tokens for a node's items: some more need groups."""


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


def test_both_ways_write_the_same_and_take_over_what_did_not_change(
    make_memory: MakeMemory,
) -> None:
    budget = {"max_input_tokens": BUDGET}
    small = make_memory(budgets=budget)
    large = make_memory(budgets={**budget, "small_run_nodes": 0}, like=small)

    for memory in (small, large):
        memory.ingest(*rows())
        memory.run(is_publishing=True)
        embedded = memory.read(EMBEDDINGS).count()
        memory.spark.sql(f"DELETE FROM {EMBEDDINGS.sql_name(memory.root.path)}")
        changed = document("acme-3", "acme", "s1", "p03", text="Location: Espoo\nHeadcount: 31")
        memory.ingest(changed, {**rows()[5], "op": "delete"})
        memory.run("update", is_publishing=True)
        again = memory.read(EMBEDDINGS).count()
        assert 0 < again < embedded / 2, "texts of nodes that stayed are not embedded again"

    trees = [memory.read(MEMORY).drop("run_id") for memory in (small, large)]
    assert_df_equality(*trees, ignore_row_order=True)
    assert _calls(large) == _calls(small)
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
