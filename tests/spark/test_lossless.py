"""Updates, kills among them, end where a rebuild of the same documents ends: rows and bytes."""

import os
import random
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from tests.builders import raw_document
from tests.spark.conftest import MakeMemory, Memory

BUDGET = 2000
"""The parent prompt alone takes about 1,300 tokens: a seat with some projects needs groups."""
OLD, EARLY, LATE = "1999-12-31T23:59:59Z", "2026-03-04T09:00:00Z", "2026-03-05T09:00:00Z"
TEXTS = (
    "Location: Turku\nWork mode: hybrid",
    "Location: Oulu",
    "Location: Turku\n\n",  # other bytes than the first, and some equal views
    "Headcount: 3\nThe manager never sponsors visas.",
    "Salary band: 4000\nLocation: Espoo\n" + "A long note about the role. " * 40,
)

Row = dict[str, Any]
Key = tuple[str, str]
"""tenant, doc_id."""


# --- Plans: pure, over a model of the documents


@dataclass(frozen=True)
class Step:
    """Commits, a run that may be killed, then the commits behind it, and a run that ends."""

    commits: Sequence[Sequence[Row]] = ()
    kill: str = ""
    later: Sequence[Sequence[Row]] = ()


def row(tenant: str, doc_id: str, place: str, text: str, time: str | None = EARLY) -> Row:
    """Return a document at a place: `seat/project`, `seat`, or nothing for the contract's own."""
    seat, project = (*filter(None, place.split("/")), None, None)[:2]
    fields = {"contract": tenant, "seat": seat, "project": project}
    return raw_document(doc_id, **fields, text=text, event_time=time)


def gone(tenant: str, doc_id: str) -> Row:
    return {"contract": tenant, "doc_id": doc_id, "op": "delete"}


def apply(model: dict[Key, Row], rows: Sequence[Row]) -> None:
    for one in rows:
        key = (one["contract"], one["doc_id"])
        if one.get("op") == "delete":
            model.pop(key, None)
        else:
            model[key] = one


START = [
    *(row("acme", f"d{n}", f"s1/p{n}", TEXTS[n % len(TEXTS)]) for n in range(8)),
    row("acme", "own", "s1", TEXTS[3], None),
    row("globex", "d1", "s1/p1", TEXTS[0]),
    row("globex", "d2", "s1/p2", TEXTS[1], LATE),
]
"""A seat that is wide for the budget, and a tenant with equal keys."""

PLAN = (
    Step([START]),
    Step(
        commits=[
            [
                row("acme", "d1", "s1/p1", TEXTS[0]),  # edit
                row("acme", "d2", "s2/p9", TEXTS[2]),  # move: its leaf disappears
                gone("acme", "d3"),
                row("acme", "d4", "s1", TEXTS[4]),  # to the seat itself
                row("acme", "late", "s1/p5", TEXTS[3], OLD),
            ]
        ],
        kill="some answers journalled",
        later=[
            [row("acme", "d1", "s1/p1", TEXTS[4]), row("acme", "d6", "s1/p6", TEXTS[1], LATE)],
            [row("acme", "d1", "s1/p1", TEXTS[3], None)],
        ],
    ),
    Step(),
    Step(
        commits=[
            [gone("globex", "d1"), gone("globex", "d2")],
            [row("acme", "d5", "", TEXTS[0]), row("acme", "d1", "s1/p1", TEXTS[1])],  # a revert
        ],
        kill="memory merged",
    ),
)


@st.composite
def plans(draw: st.DrawFn) -> list[Step]:
    """Draw three steps after the start; every operation is one that the model allows."""
    random_source = draw(st.randoms(use_true_random=False))
    model: dict[Key, Row] = {}
    past: dict[Key, list[Row]] = {}
    remember(past, model, START)
    steps = [Step([START])]
    for _ in range(3):
        kill = draw(st.sampled_from([*KILLS, ""]))
        commits: list[list[Row]] = []
        later: list[list[Row]] = []
        for part, counts in ((commits, [1, 2, 0]), (later, [0, 1] if kill else [0])):
            for _ in range(draw(st.sampled_from(counts))):
                names = draw(st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, max_size=4))
                rows = distinct(r for n in names for r in OPERATIONS[n](random_source, model, past))
                remember(past, model, rows)
                part.append(rows)
        steps.append(Step(commits, kill, later))
    return steps


def remember(past: dict[Key, list[Row]], model: dict[Key, Row], rows: Sequence[Row]) -> None:
    apply(model, rows)
    for one in rows:
        if "op" not in one:
            past.setdefault((one["contract"], one["doc_id"]), []).append(one)


def distinct(rows: Iterator[Row]) -> list[Row]:
    """Return the last row of each document: one input may name it only once."""
    return list({(one["contract"], one["doc_id"]): one for one in rows}.values())


Past = Mapping[Key, Sequence[Row]]
Operation = Callable[[random.Random, Mapping[Key, Row], Past], list[Row]]


def insert(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    tenant = source.choice(["acme", "acme", "globex"])
    place = source.choice(["s1/p1", "s1/p7", "s2/p1", "s3/p1", "s2", ""])
    time = source.choice([OLD, EARLY, EARLY, LATE, None])
    return [row(tenant, f"new{source.randrange(9)}", place, source.choice(TEXTS), time)]


def change(source: random.Random, model: Mapping[Key, Row], **choices: Sequence[Any]) -> list[Row]:
    """Return some document with one of the choices for each of the named fields."""
    if not model:
        return []
    old = model[source.choice(sorted(model))]
    return [{**old, **{name: source.choice(values) for name, values in choices.items()}}]


def edit(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, text=TEXTS)


def move(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, seat=["s1", "s2", "s4"], project=["p1", "p3", "p8"])


def lift(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, seat=["s1", "s2", None], project=[None])


def redate(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, event_time=[OLD, EARLY, LATE, None])


def delete(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return [gone(*source.choice(sorted(model)))] if model else []


def remove_tenant(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    tenant = source.choice(["acme", "globex", "globex"])
    return [gone(*key) for key in model if key[0] == tenant]


def revert(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return [source.choice(past[source.choice(sorted(past))])]


OPERATIONS: Mapping[str, Operation] = {
    one.__name__: one for one in (insert, edit, move, lift, redate, delete, remove_tenant, revert)
}


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
@given(plan=plans(), budget=st.sampled_from([BUDGET, 24_000]))
def test_any_updates_with_any_kills_end_where_a_rebuild_ends(
    make_world: Callable[..., World], plan: Sequence[Step], budget: int
) -> None:
    world = make_world(max_input_tokens=budget)

    for step in plan:
        world.take(step, must_die=False)
        world.check()
