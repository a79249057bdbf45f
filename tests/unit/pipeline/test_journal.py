"""The journal of a run, as workers and the driver see it: in a folder and in an object store."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.models.budgets import Spent
from hltm_spark.pipeline.journal import FAILURE, Journal, answers_of, note_failure
from hltm_spark.pipeline.journal_fold import left_answers
from hltm_spark.pipeline.journal_place import (
    beside,
    check_journals,
    clear_beside,
    left_journals,
    open_journals,
    open_store,
)
from hltm_spark.pipeline.journal_stop import BUDGET, DOWN, LLM, Stop, read_stop, write_stop
from hltm_spark.pipeline.journal_store import JournalStore, whole_lines
from hltm_spark.pipeline.journal_sums import Spending
from hltm_spark.pipeline.root import open_root
from tests.builders import settings
from tests.object_server import serve_objects


def answer(number: int) -> dict[str, Any]:
    return {"response": f"東京 {number}", "prompt_tokens": 100, "completion_tokens": 10}


def write(journal: Journal, count: int) -> None:
    for number in range(count):
        journal.append(answer(number))


@pytest.fixture(params=["folder", "objects"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return where journals are kept, as conf has it."""
    if request.param == "folder":
        yield str(tmp_path / "mount")
        return
    with serve_objects() as server:
        yield server.url("some prefix/below")


@pytest.fixture
def run(url: str) -> JournalStore:
    """Return the journal of one run."""
    return open_store(url).within("run-1")


@pytest.fixture
def start(run: JournalStore) -> Iterator[Callable[..., Journal]]:
    """Return what starts the journal of a worker."""
    started: list[Journal] = []

    def make(worker: int = 0, stage: str = "one") -> Journal:
        store = open_store(run.location)  # a worker gets no more than the location
        started.append(Journal.start(store, stage=stage, worker=worker))
        return started[-1]

    yield make
    for journal in started:
        journal.close()


def test_answers_come_back_as_they_were_written(start: Callable[..., Journal]) -> None:
    journal = start()

    write(journal, 150)
    journal.close()

    assert list(journal.answers()) == [answer(number) for number in range(150)]


def test_an_attempt_sees_what_earlier_ones_of_its_task_wrote_and_nothing_else(
    start: Callable[..., Journal],
) -> None:
    for number, (stage, worker) in enumerate([("one", 1), ("one", 1), ("one", 11), ("two", 1)]):
        journal = start(worker, stage)
        journal.append(answer(number))
        journal.close()

    again = start(1)
    write(again, 1)
    again.flush()

    assert sorted(a["response"] for a in again.earlier()) == ["東京 0", "東京 1"]


def test_a_stop_is_seen_by_the_other_workers(
    run: JournalStore, start: Callable[..., Journal]
) -> None:
    one, other = start(0), start(1)

    one.stop("the endpoint is down", kind=DOWN)

    assert one.stopped()
    assert other.stopped()
    assert read_stop(run) == Stop(DOWN, "the endpoint is down")


def test_a_budget_stops_a_run_only_where_a_request_was_left_out(
    run: JournalStore, start: Callable[..., Journal]
) -> None:
    write_stop(run, "reached", kind=BUDGET)
    before = read_stop(run)

    start().note_skipped()

    assert before is None
    assert read_stop(run) == Stop(BUDGET, "reached")


def test_a_model_that_takes_no_request_weighs_more_than_a_budget(
    run: JournalStore, start: Callable[..., Journal]
) -> None:
    write_stop(run, "reached", kind=BUDGET)
    start().stop("the key is refused")
    write_stop(run, "reached", kind=BUDGET)

    assert read_stop(run) == Stop(LLM, "the key is refused")


def test_workers_that_left_give_their_place_to_those_at_work(
    start: Callable[..., Journal],
) -> None:
    workers = [start(n) for n in range(12)]
    start(0, "two").leave()

    before = workers[11].place(of=12)
    for n in (1, 10):
        workers[n].leave()

    assert before == (11, 12)
    assert workers[0].place(of=12) == (0, 10)
    assert workers[11].place(of=12) == (9, 10)


def test_sums_grow_with_the_journal(run: JournalStore, start: Callable[..., Journal]) -> None:
    spending, journal, other = Spending(run), start(0), start(1)

    nothing = spending.read()
    write(journal, 70)
    journal.flush()
    first = spending.read()
    write(other, 1)
    other.close()

    assert nothing == Spent()
    assert first == Spent(70, 7000, 700)
    assert spending.read() == spending.read() == Spending(run).read() == Spent(71, 7100, 710)


def test_failures_are_lines_that_spark_can_read(run: JournalStore, tmp_path: Path) -> None:
    for number in range(3):
        note_failure(run, {"node_id": f"p{number}"})

    names = [file.name for file in run.files(FAILURE)]
    files = run.on_disk(names, tmp_path / "scratch")

    lines = [line for file in files for line in Path(file).read_text().splitlines()]
    assert {json.loads(line)["node_id"] for line in lines} == {"p0", "p1", "p2"}


def test_what_is_cleared_is_gone_and_no_more(
    run: JournalStore, start: Callable[..., Journal]
) -> None:
    journal = start()
    write(journal, 2)
    journal.close()
    journal.stop("enough")

    answers_of(run).clear()
    kept = run.files("")
    run.clear()
    run.clear()

    assert [file.name for file in kept] == ["SKIPPED", "STOP"]
    assert run.files("") == []


def test_roots_that_share_a_place_never_see_each_others_journals(url: str, tmp_path: Path) -> None:
    chosen = settings(storage={"journal_url": url})
    roots = [open_root(str(tmp_path / name)) for name in ("a", "b")]
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "root.json").write_bytes((tmp_path / "a" / "root.json").read_bytes())
    roots.append(open_root(str(copy)))
    for number, root in enumerate(roots):
        check_journals(chosen, root)
        store = open_journals(chosen, root).within("run")
        journal = Journal.start(store, stage="one", worker=0)
        journal.append(answer(number))
        journal.close()

    for place in left_journals(chosen, roots[0]):
        place.clear()
    left = [left_answers(left_journals(chosen, root), tmp_path / "scratch") for root in roots]

    found = [[json.loads(Path(f).read_text())["response"] for f in files] for files in left]
    assert found == [[], ["東京 1"], ["東京 2"]]


def test_answers_under_the_root_are_found_after_conf_named_another_place(
    url: str, tmp_path: Path
) -> None:
    root = open_root(str(tmp_path / "root"))
    for number, chosen in enumerate([settings(), settings(storage={"journal_url": url})]):
        store = open_journals(chosen, root).within(f"run-{number}")
        journal = Journal.start(store, stage="one", worker=0)
        journal.append(answer(number))
        journal.close()

    places = left_journals(settings(storage={"journal_url": url}), root)
    files = left_answers(places, tmp_path / "scratch")

    assert len(files) == 2
    assert list(left_journals(settings(), root)) == places[:1]


def test_no_run_of_a_root_folds_the_journals_of_a_rebuild_beside_it(
    url: str, tmp_path: Path
) -> None:
    chosen, root = settings(storage={"journal_url": url}), open_root(str(tmp_path / "root"))
    scratch = open_root(str(tmp_path / "root" / "staging" / "root"))
    place = open_journals(beside(chosen, root), scratch)
    place.write("one.jsonl", json.dumps(answer(1)) + "\n")

    seen = left_answers(left_journals(chosen, root), tmp_path / "scratch")
    clear_beside(chosen, root)

    assert seen == []
    assert place.files("") == []
    assert beside(settings(), root) == settings()


def test_a_line_that_is_being_written_is_none_and_neither_is_its_other_half() -> None:
    read = [b'{"calls": 1}\n', b'{"calls"', b": 2}\n", b'{"calls": 3}\n']

    assert list(whole_lines(read)) == [b'{"calls": 1}\n']
