"""Kill -9 of a worker, an executor and a driver at any moment: nothing is paid twice or lost."""

import logging
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
from tests.spark.kill_rig import LEVELS, ROWS, Content, Game, Rig, content, judge, script
from tests.spark.two_hosts import two_hosts

logger = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("HLTM_KILL_ROUNDS", "50"))
ROUNDS_OF_A_GAME = 3
SEED = int(os.environ.get("HLTM_KILL_SEED", "1"))

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
"""A twin for whatever takes a bit longer than the other half of its stage."""

Play = Callable[[Game], Rig]


@pytest.fixture(scope="module")
def documents(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, empty_tables: Path
) -> Memory:
    """Return a memory that has its documents and was never run."""
    memory = MakeMemory(spark, tmp_path_factory.mktemp("kills"), empty_tables)(LEVELS)
    memory.ingest(*ROWS)
    return memory


@pytest.fixture(scope="module")
def undisturbed(documents: Memory) -> Callable[[Game], Content]:
    """Return a function that gives the content which a game must end with."""
    found: dict[bool, Content] = {}

    def run(game: Game) -> Content:
        if game.is_faulty not in found:
            root = documents.scratch / f"undisturbed-{game.is_faulty}"
            shutil.copytree(documents.root.path, root)
            with serve_llm(script(is_faulty=game.is_faulty)) as server:
                sections = game.settings
                sections["llm"]["base_url"] = server.base_url
                memory = Memory(
                    spark=documents.spark,
                    root=open_root(str(root)),
                    settings=settings(*LEVELS, **sections),
                    scratch=documents.scratch,
                )
                assert memory.run().failed == 0
            found[game.is_faulty] = content(memory.root.path)
        return found[game.is_faulty]

    return run


@pytest.fixture
def play(documents: Memory, undisturbed: Callable[[Game], Content], tmp_path: Path) -> Play:
    """Return a function that plays a game, and judges it."""

    def run(game: Game) -> Rig:
        name = f"{game.victim.replace(' ', '-')}-{game.seed}"
        with serve_llm(script(is_faulty=game.is_faulty)) as server:
            rig = Rig.over(Path(documents.root.path), tmp_path / name, server, game)
            rig.play()
            assert judge(rig) == undisturbed(game), "the tables are not those of a calm run"
        logger.info("%d kills: %s", rig.kills, game)
        shutil.rmtree(rig.root)
        return rig

    return run


@pytest.mark.parametrize(
    "game",
    [
        pytest.param(Game(seed=0, victim="driver", after=(30,), is_small=True), id="driver"),
        pytest.param(
            Game(seed=0, victim="executor", after=(20,)), id="executor", marks=pytest.mark.soak
        ),
    ],
)
def test_what_was_paid_before_a_kill_is_not_paid_again(play: Play, game: Game) -> None:
    rig = play(game)

    assert rig.kills == 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, ROUNDS, ROUNDS_OF_A_GAME))
def test_kills_at_any_moment_lose_and_repeat_nothing(play: Play, first: int) -> None:
    names = ("worker", "executor", "driver", "worker", "executor", "driver's Python",
             "worker", "executor", "driver's JVM", "driver")  # fmt: skip
    number, rounds = first // ROUNDS_OF_A_GAME, min(ROUNDS_OF_A_GAME, ROUNDS - first)
    game = Game.draw(names[number % len(names)], seed=SEED + number, rounds=rounds)
    try:
        play(game)
    except AssertionError as error:
        raise AssertionError(f"{game}: {error}") from error


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_twin_of_a_slow_task_pays_nothing_again(
    documents: Memory, undisturbed: Callable[[Game], Content], tmp_path: Path
) -> None:
    game = Game(seed=0, victim="executor", after=())
    with serve_llm(script(is_faulty=False)) as server, two_hosts(tmp_path / "hosts") as cluster:
        rig = Rig.over(Path(documents.root.path), tmp_path / "root", server, game)
        rig.master = cluster.master
        rig.options = [f"--conf {name}={value}" for name, value in SPECULATION.items()]

        has_twin = rig.hold_up(after=10, hosts=cluster.pids)

        assert has_twin, "Spark started no second attempt"
        assert judge(rig) == undisturbed(game)
