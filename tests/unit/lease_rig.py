"""A run that holds a lease in a process of its own, and obeys line by line."""

import os
import select
import subprocess
import sys

from hltm_spark.pipeline.root import Root

RUN = """
import contextlib, sys, time
from hltm_spark.core.errors import HltmError
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.root import Root

held, lease = contextlib.ExitStack(), None
for line in sys.stdin:
    word, *numbers = line.split()
    try:
        if word == "take":
            ttl_s, wait_s, start = map(float, numbers)
            while time.time() < start:
                pass
            root = Root(path=sys.argv[1], salt="s")
            lease = held.enter_context(
                hold_lease(root, verb="update", run_id="r1", ttl_s=ttl_s, wait_s=wait_s)
            )
            answer = f"epoch {lease.epoch}"
        elif word == "check":
            lease.check()
            answer = "may write"
        else:
            held.close()
            answer = "released"
    except HltmError as error:
        answer = f"{type(error).__name__}: {error}"
    print(answer, flush=True)
"""
LONG_S = 600.0  # never over within a test
ANSWER_S = 60.0


class OtherRun:
    """A run in a process of its own."""

    def __init__(self, root: Root) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, root.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, word: str, *numbers: float) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join([word, *map(str, numbers)]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        assert select.select([self.process.stdout], [], [], ANSWER_S)[0], "no answer"
        return self.process.stdout.readline().strip()

    def ask(self, word: str, *numbers: float) -> str:
        self.tell(word, *numbers)
        return self.answer()

    def take(self, *, ttl_s: float = LONG_S, wait_s: float = 0, start: float = 0) -> str:
        return self.ask("take", ttl_s, wait_s, start)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def await_death(self) -> None:
        """Return when it is dead, but not yet waited for by its parent."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
