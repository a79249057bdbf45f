"""Runs of the command line that are killed while they call a model, and their judge.

A run is a process of its own, with its JVM, its executors and its Python workers. Once the served
endpoint has sent so many answers, one of these processes is killed; then the verb runs again to the
end. What the endpoint's log says was paid must stand in the ledger, and the tables must be those of
a run that nobody disturbed.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hltm_spark.pipeline.files import read_rows
from hltm_spark.pipeline.tables import LLM_CALLS, MEMORY
from tests.builders import raw_document
from tests.llm_server import (
    Call,
    LlmServer,
    Reply,
    broken_json,
    delayed,
    is_repair,
    rate_limited,
    reset,
)
from tests.spark.victims import DRIVERS, VICTIMS, open_files, send_signal, stop, workers_below

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 900.0
"""A run that takes longer hangs."""
TWIN_S = 300.0
"""Spark starts a twin of a task that is stopped in this time."""

LEVELS = ("contract", "seat", "project")
ROWS = [
    raw_document(
        f"d{number}",
        contract="globex" if number % 4 == 0 else "acme",
        seat=f"s{number % 3}",
        project=f"p{number:02}",
        text=f"Location: Turku {number}\nHeadcount: {number % 7}",
    )
    for number in range(40)
]
"""Two tenants with six seats: 48 nodes, one call each."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """One root and the kills on it, as they were drawn from a seed; each kill begins a round.

    Attributes:
        victim: Key of `VICTIMS`.
        after: Answers that were sent before each kill. A run outlives its workers and executors;
            of drivers, each kill takes a run of its own, and another one ends the game.
        pause_s: From that answer to the kill.
        at_once: Calls in flight, over the whole run.
        is_small: The levels are walked in the driver, not by Spark.
        is_faulty: Some prompts meet faults.
    """

    seed: int
    victim: str
    after: tuple[int, ...]
    pause_s: float = 0.0
    at_once: int = 4
    is_small: bool = False
    is_faulty: bool = False

    @classmethod
    def draw(cls, victim: str, *, seed: int, rounds: int) -> "Game":
        """Draw a game: kills at any answer but the last, and some in what follows an answer."""
        source = random.Random(f"{victim} {seed}")
        is_driver = victim in DRIVERS
        return cls(
            seed=seed,
            victim=victim,
            after=tuple(sorted(source.sample(range(1, 48), rounds))),
            pause_s=source.choice([0.0, 0.0, 0.03, 0.3, 2.0]),
            at_once=source.choice([2, 4, 8]),
            is_small=is_driver and source.random() < 0.5,
            is_faulty=source.random() < 0.5,
        )

    @property
    def master(self) -> str:
        """Executors of their own where one is to be killed; four tries a task in any case."""
        return "local-cluster[2,1,1024]" if self.victim == "executor" else "local[2,4]"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings beside the endpoint's address."""
        return {
            "llm": {"provider": "openai", "model": "m", "max_concurrency": self.at_once},
            "budgets": {"small_run_nodes": 500 if self.is_small else 0},
            "storage": {"lease_ttl_s": 3600},  # a loaded machine must not lose it
        }


# --- The endpoint


def script(*, is_faulty: bool) -> Callable[[Call], Reply]:
    """Return a script that answers after 50 to 100 ms, by the prompt.

    Of ten prompts, one is refused once, one loses its connection once, and one is always answered
    malformed, so that a run pays the same calls whatever it was asked before.
    """
    seen: set[str] = set()

    def reply(call: Call) -> Reply:
        number = int(hashlib.sha256(call.prompt.encode()).hexdigest(), 16)
        kind, is_first = number % 10, call.prompt not in seen
        seen.add(call.prompt)
        if is_faulty and not is_repair(call):
            if kind == 0 and is_first:
                return rate_limited("0")
            if kind == 1 and is_first:
                return reset()
            if kind == 2:
                return broken_json()
        return delayed(0.05 + number % 50 / 1000)

    return reply


def sent(server: LlmServer) -> int:
    """Return how many answers were sent."""
    return sum(call.status == 200 and bool(call.sent) for call in server.chats)


# --- A run


@dataclass(kw_only=True)
class Rig:
    """A root and a conf file on which runs are started and killed.

    Attributes:
        root: The storage root, with its documents.
        master: Of Spark, over the game's.
        options: Further options of spark-submit.
        kills: How many there were.
        journalled: After each kill: the requests so far, and the usable answers in the journal.
    """

    root: Path
    server: LlmServer
    game: Game
    master: str = ""
    options: Sequence[str] = ()
    kills: int = 0
    journalled: list[tuple[int, set[str]]] = field(default_factory=list)

    @classmethod
    def over(cls, template: Path, root: Path, server: LlmServer, game: Game) -> "Rig":
        """Copy a root that has its documents, and nothing else."""
        shutil.copytree(template, root)
        return cls(root=root, server=server, game=game)

    def play(self) -> None:
        """Kill as often as the game says, and have a run come to its end."""
        after = self.game.after
        if self.game.victim in DRIVERS:
            for answers in after:
                self.kill(after=[answers])
            self.finish()
        else:
            self.kill(after=after)

    def kill(self, *, after: Sequence[int]) -> None:
        """Start a run and kill the victim; a worker's or an executor's run must end by itself."""
        run, is_killed = self._start("index"), False
        try:
            for answers in after:
                if self._reached(answers, run):
                    time.sleep(self.game.pause_s)
                    is_killed = VICTIMS[self.game.victim](run.pid)
                    kept = journalled(self.root)
                    self.journalled.append((len(self.server.chats), kept))
                    self.kills += is_killed
            code = run.wait(PATIENCE_S)
        finally:
            stop(run)
        must_end = self.game.victim not in DRIVERS or not is_killed
        assert not must_end or code == 0, f"the run ended with {code}:\n{self._said()}"

    def finish(self) -> None:
        """Run to the end."""
        run = self._start("update" if self.game.seed % 2 else "index")
        try:
            code = run.wait(PATIENCE_S)
        finally:
            stop(run)
        assert code == 0, f"the resumed run ended with {code}:\n{self._said()}"

    def hold_up(self, *, after: int, hosts: Sequence[int]) -> bool:
        """Run to the end, one worker stopped until its task has a twin; tell whether it got one.

        Args:
            after: Answers that are sent before.
            hosts: Processes that executors are below.
        """
        run, has_twin = self._start("index"), False
        try:
            self._reached(after, run)
            slow = next(w for w in workers_below(*hosts) if open_files(w, ".jsonl"))
            send_signal(signal.SIGSTOP, slow)
            deadline = time.monotonic() + TWIN_S
            while not has_twin and time.monotonic() < deadline:
                time.sleep(0.1)
                claims = [lock for w in workers_below(*hosts) for lock in open_files(w, ".lock")]
                has_twin = len(claims) > len(set(claims))
            send_signal(signal.SIGCONT, slow)
            code = run.wait(PATIENCE_S)
        finally:
            stop(run)
        assert code == 0, f"the run ended with {code}:\n{self._said()}"
        return has_twin

    def _reached(self, after: int, run: "subprocess.Popen[bytes]") -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while sent(self.server) < after and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.003)
        return run.poll() is None

    def _start(self, verb: str) -> "subprocess.Popen[bytes]":
        given = self.game.settings
        given["llm"]["base_url"] = self.server.base_url
        chosen = [
            f"--set={section}.{name}={value}"
            for section, values in given.items()
            for name, value in values.items()
        ]
        conf = self.root.with_suffix(".toml")
        conf.write_text("".join(f'[[levels]]\nname = "{name}"\n' for name in LEVELS))
        command = [sys.executable, "-m", "hltm_spark.cli", verb, "--no-publish"]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, f"--conf={conf}", f"--root={self.root}", *chosen],
                env={**os.environ, **self._environment()},
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group of its own, to be killed as one
            )

    def _environment(self) -> Mapping[str, str]:
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "HLTM_MASTER": self.master or self.game.master,
            "HLTM_DRIVER_MEMORY": "1g",
            "HLTM_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PYSPARK_SUBMIT_ARGS": " ".join([*self.options, "pyspark-shell"]),
        }

    @property
    def _log(self) -> Path:
        return self.root.with_suffix(".log")

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]


# --- The judge

Content = Mapping[str, Any]
"""`memory`, its rows in order, and `calls`, a set."""


def journalled(root: Path) -> set[str]:
    """Return the usable answers that stand in a root's journals."""
    found = set()
    for file in root.glob("journal/**/*.jsonl"):
        with suppress(FileNotFoundError), file.open(encoding="utf-8") as lines:
            answers = [json.loads(line) for line in lines if line.endswith("\n")]
            found |= {answer["response"] for answer in answers if answer["is_usable"]}
    return found


def judge(rig: Rig) -> Content:
    """Hold the ledger against the endpoint's log, and return the content of the root.

    A request is in flight until a usable answer to it is in the journal: also while one that was
    malformed is repaired.
    """
    paid: dict[str, list[Call]] = {}
    for call in rig.server.chats:
        if call.status == 200:
            paid.setdefault(call.prompt, []).append(call)
    rows = read_rows(LLM_CALLS.files(str(rig.root)), ["tenant_id", "request_hash", "run_id"])
    on_record = Counter((row["tenant_id"], row["request_hash"]) for row in rows)
    assert len(on_record) == len(paid), "an answer is missing, or there without a call"
    assert len(rows) == len({tuple(row.values()) for row in rows}), "a row is there twice"

    again = [calls for calls in paid.values() if len(calls) > 1]
    for before, kept in rig.journalled:  # repairs may be answered alike
        later = [c for c in rig.server.chats[before:] if c.status == 200 and not is_repair(c)]
        lost = [call for call in later if _text(call) in kept]
        assert not lost, f"{len(lost)} answers were paid again that were in the journal"
    allowed = rig.game.at_once * rig.kills
    for are_repairs in (False, True):
        count = sum(len(c) - 1 for c in again if is_repair(c[0]) == are_repairs)
        assert count <= allowed, f"{count} answers were paid again, {allowed} were in flight"
    return content(str(rig.root))


def _text(call: Call) -> str | None:
    """Return the text of an answer that was sent."""
    if not call.sent:
        return None
    text: str = json.loads(call.sent)["choices"][0]["message"]["content"]
    return text


def content(root: str) -> Content:
    """Return what must not depend on kills: the memory without run ids, and the calls on record."""
    columns = [name for name in MEMORY.columns if name != "run_id"]
    memory = read_rows(MEMORY.files(root), columns)
    calls = read_rows(LLM_CALLS.files(root), ["tenant_id", "request_hash", "repair_of", "response"])
    return {
        "memory": sorted(memory, key=lambda row: (row["tenant_id"], row["keys"])),
        "calls": {tuple(row.values()) for row in calls},
    }
