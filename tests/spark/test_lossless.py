"""Updates, kills among them, end where a rebuild of the same documents ends: rows and bytes."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from hltm_spark.core.shard import PROVENANCE, current_version
from hltm_spark.models.extractive import ExtractiveClient
from hltm_spark.pipeline import index, publish_small, tables
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.tables import DOCUMENTS, LLM_CALLS, PUBLISHED, Table
from tests.spark.conftest import MakeMemory, Memory
from tests.spark.lossless_plans import PLAN, TEXTS, Key, Row, Step, apply, gone, plans, row

BUDGET = 1635
"""It leaves about 680 tokens for a seat's items: one with some projects needs groups."""

# --- Kills: a fork of this process runs, and kills itself at a point; no `finally` is run


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(function: Callable[..., Any], *, calls: int) -> Callable[..., Any]:
    done = iter(range(1, calls + 1))

    def patched(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        return die() if next(done, calls) == calls else result

    return patched


def die_around_append(table: Table, *, is_after: bool) -> Callable[..., None]:
    append = Commits.append

    def patched(self: Commits, given: Table, rows: Any) -> None:
        if given is table and not is_after:
            die()
        append(self, given, rows)
        if given is table:
            die()

    return patched


KILLS: Mapping[str, Callable[[], tuple[Any, str, Any]]] = {
    "some answers journalled": lambda: (Journal, "append", die_after(Journal.append, calls=3)),
    "all answers journalled": lambda: (
        Commits,
        "append",
        die_around_append(LLM_CALLS, is_after=False),
    ),
    "answers in the ledger": lambda: (
        Commits,
        "append",
        die_around_append(LLM_CALLS, is_after=True),
    ),
    "nodes staged": lambda: (index, "_merge", die),
    "memory merged": lambda: (index, "_publish", die),
    "shards staged": lambda: (publish_small, "move_into_place", die),
    "shards in place": lambda: (Commits, "append", die_around_append(PUBLISHED, is_after=False)),
    "shards published": lambda: (index, "_record", die),
}
"""Attributes to replace in the process that is to die, by the point it has reached then."""


# --- The memory under test


@dataclass
class World:
    """A memory, the model of its documents, and every call that was paid."""

    make_memory: MakeMemory
    memory: Memory
    paid: Path
    model: dict[Key, Row] = field(default_factory=dict)

    def take(self, step: Step, *, must_die: bool) -> None:
        self._commit(step.commits)
        if step.kill:
            is_dead = self._killed_update(step.kill)
            assert is_dead or not must_die, f"the run did not reach {step.kill!r}"
        self._commit(step.later)
        run = self.memory.run("update", is_publishing=True)
        assert (run.status, run.failed) == ("done", 0)

    def check(self) -> None:
        """Compare with a rebuild, and the ledger with the calls that were made."""
        memory = self.memory
        documents = memory.read(DOCUMENTS)
        keys = {(r["tenant_id"], r["doc_id"]): tuple(r["keys"]) for r in documents.collect()}
        assert keys == {key: keys_of(one) for key, one in self.model.items()}
        ledger = [
            tuple(r) for r in memory.read(LLM_CALLS).select("tenant_id", "request_hash").collect()
        ]
        assert len(ledger) == len(set(ledger)) == self._calls, "a paid call was lost or repeated"

        rebuilt = self.make_memory(like=memory)
        rebuilt.settings = memory.settings
        DOCUMENTS.append(documents, rebuilt.root.path)
        before = self._calls
        rebuilt.run("index", is_publishing=True)
        os.truncate(self.paid, before)

        assert rebuilt.content() == memory.content()
        assert published(rebuilt) == published(memory)

    def _commit(self, commits: Sequence[Sequence[Row]]) -> None:
        for rows in commits:
            self.memory.ingest(*rows)
            apply(self.model, rows)

    @property
    def _calls(self) -> int:
        return self.paid.stat().st_size

    def _killed_update(self, point: str) -> bool:
        """Run an update in a fork of this process; tell whether it died where it should."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            try:
                tables.DeltaTable = partial(LogBySpark, self.memory.spark)  # type: ignore[misc, assignment]
                place, name, deadly = KILLS[point]()
                assert hasattr(place, name)
                setattr(place, name, deadly)
                self.memory.run("update", is_publishing=True)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - told, and the fork ends
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status in {0, signal.SIGKILL}, f"the run to be killed at {point!r} failed"
        return status == signal.SIGKILL


class LogBySpark:
    """Stands for delta-rs in a fork of this process, which its runtime does not survive."""

    def __init__(self, spark: SparkSession, path: str, version: int | None = None) -> None:
        self._spark, self._path, self._version = spark, path, version

    def file_uris(self) -> list[str]:
        reader = self._spark.read.format("delta")
        if self._version is not None:
            reader = reader.option("versionAsOf", self._version)
        return [urlparse(uri).path for uri in reader.load(self._path).inputFiles()]

    def version(self) -> int:
        log = Path(self._path) / "_delta_log"
        return max(int(file.stem) for file in log.glob("[0-9]*.json"))

    def metadata(self) -> Any:
        detail = self._spark.sql(f"DESCRIBE DETAIL delta.`{self._path}`")
        return detail.select("id").first()


def keys_of(one: Row) -> tuple[str, ...]:
    return tuple(filter(None, (one["contract"], one["seat"], one["project"])))


def published(memory: Memory) -> dict[str, bytes]:
    """Return the files of every tenant's current version."""
    shards, found = memory.root.shards, {}
    for tenant in shards.iterdir() if shards.exists() else ():
        version = tenant / current_version(tenant)
        for file in version.iterdir():
            if file.name != PROVENANCE:
                found[str(file.relative_to(shards))] = file.read_bytes()
    return found


@pytest.fixture
def make_world(
    make_memory: MakeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., World]:
    paid = tmp_path / "paid"
    complete = ExtractiveClient.complete

    def counted(self: ExtractiveClient, request: Any) -> Any:
        with paid.open("ab") as file:
            file.write(b".")
        return complete(self, request)

    monkeypatch.setattr(ExtractiveClient, "complete", counted)

    def make(**budgets: int) -> World:
        paid.write_bytes(b"")
        # one call at a time: a kill loses what is in flight, which would be paid again
        memory = make_memory(budgets=budgets, llm={"max_concurrency": 1})
        return World(make_memory, memory, paid)

    return make


def test_updates_with_kills_between_them_end_where_a_rebuild_ends(
    make_world: Callable[..., World],
) -> None:
    world = make_world(max_input_tokens=BUDGET)

    for number, step in enumerate(PLAN):
        world.take(step, must_die=True)
        if number in {1, len(PLAN) - 1}:
            world.check()
    calls = world.memory.read(LLM_CALLS).groupBy("run_id", "node_id").count()
    assert not calls.where("count > 1").isEmpty(), "no seat was read in groups"


@pytest.mark.soak
def test_shards_of_a_run_that_died_do_not_outlive_a_revert(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    one = {name: row(name, "d1", "s1/p1", TEXTS[0]) for name in ("acme", "globex", "initech")}
    world.take(Step([[one["acme"], one["globex"]]]), must_die=True)
    edited = {**one["acme"], "text": TEXTS[1]}

    there = [edited, gone("globex", "d1"), one["initech"]]
    back = [one["acme"], one["globex"], gone("initech", "d1")]
    world.take(Step([there], "shards in place", [back]), must_die=True)

    world.check()


@pytest.mark.soak
def test_the_staged_rows_of_a_run_that_died_are_removed_by_the_next(
    make_world: Callable[..., World],
) -> None:
    world = make_world()

    world.take(Step([[row("acme", "d1", "s1/p1", TEXTS[0])]], "nodes staged"), must_die=True)

    assert not list(world.memory.root.folder("staging").rglob("*.parquet"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(
    max_examples=4,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # to shrink would take hours
    suppress_health_check=list(HealthCheck),  # Spark is slow, and the fixture gives new roots
)
@given(plan=plans(list(KILLS)), budget=st.sampled_from([BUDGET, 24_000]))
def test_any_updates_with_any_kills_end_where_a_rebuild_ends(
    make_world: Callable[..., World], plan: Sequence[Step], budget: int
) -> None:
    world = make_world(max_input_tokens=budget)

    for step in plan:
        world.take(step, must_die=False)
        world.check()
