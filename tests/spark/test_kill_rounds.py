"""Kill -9 of a worker, an executor and a driver at any moment: nothing is paid twice or lost."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hltm_spark.pipeline.root import open_root
from tests.builders import settings
from tests.llm_server import serve_llm
from tests.spark.conftest import MakeMemory, Memory
from tests.spark.kill_rig import LEVELS, ROWS, Content, Rig, Round, content, judge, script
from tests.spark.two_hosts import two_hosts

ROUNDS = int(os.environ.get("HLTM_KILL_ROUNDS", "50"))
SEED = int(os.environ.get("HLTM_KILL_SEED", "1"))

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
"""A twin for whatever takes a bit longer than the other half of its stage."""

Play = Callable[[Round], Rig]


@pytest.fixture(scope="module")
def documents(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, empty_tables: Path
) -> Memory:
    """Return a memory that has its documents and was never run."""
    memory = MakeMemory(spark, tmp_path_factory.mktemp("kills"), empty_tables)(LEVELS)
    memory.ingest(*ROWS)
    return memory


@pytest.fixture(scope="module")
def undisturbed(documents: Memory) -> Callable[[Round], Content]:
    """Return a function that gives the content which a round must end with."""
    found: dict[bool, Content] = {}

    def run(given: Round) -> Content:
        if given.is_faulty not in found:
            root = documents.scratch / f"undisturbed-{given.is_faulty}"
            shutil.copytree(documents.root.path, root)
            with serve_llm(script(is_faulty=given.is_faulty)) as server:
                sections = given.settings
                sections["llm"]["base_url"] = server.base_url
                memory = Memory(
                    spark=documents.spark,
                    root=open_root(str(root)),
                    settings=settings(*LEVELS, **sections),
                    scratch=documents.scratch,
                )
                assert memory.run().failed == 0
            found[given.is_faulty] = content(memory.root.path)
        return found[given.is_faulty]

    return run


@pytest.fixture
def play(documents: Memory, undisturbed: Callable[[Round], Content], tmp_path: Path) -> Play:
    """Return a function that plays a round, and judges it."""

    def run(given: Round) -> Rig:
        name = f"{given.victim.replace(' ', '-')}-{given.seed}"
        with serve_llm(script(is_faulty=given.is_faulty)) as server:
            rig = Rig.over(Path(documents.root.path), tmp_path / name, server, given)
            rig.play()
            assert judge(rig) == undisturbed(given), "the tables are not those of a calm run"
        shutil.rmtree(rig.root)
        return rig

    return run


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(Round(seed=0, victim="driver", after=(30,), is_small=True), id="driver"),
        pytest.param(
            Round(seed=0, victim="executor", after=(20,)), id="executor", marks=pytest.mark.soak
        ),
    ],
)
def test_what_was_paid_before_a_kill_is_not_paid_again(play: Play, given: Round) -> None:
    rig = play(given)

    assert rig.kills == 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_kills_at_any_moment_lose_and_repeat_nothing(play: Play, number: int) -> None:
    names = ("worker", "executor", "driver", "worker", "executor", "driver's Python",
             "worker", "executor", "driver's JVM", "driver")  # fmt: skip
    given = Round.draw(names[number % len(names)], seed=SEED + number)
    try:
        play(given)
    except AssertionError as error:
        raise AssertionError(f"{given}: {error}") from error


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_twin_of_a_slow_task_pays_nothing_again(
    documents: Memory, undisturbed: Callable[[Round], Content], tmp_path: Path
) -> None:
    given = Round(seed=0, victim="executor", after=())
    with serve_llm(script(is_faulty=False)) as server, two_hosts(tmp_path / "hosts") as cluster:
        rig = Rig.over(Path(documents.root.path), tmp_path / "root", server, given)
        rig.master = cluster.master
        rig.options = [f"--conf {name}={value}" for name, value in SPECULATION.items()]

        has_twin = rig.hold_up(after=10, hosts=cluster.pids)

        assert has_twin, "Spark started no second attempt"
        assert judge(rig) == undisturbed(given)
