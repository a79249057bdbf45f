"""Python workers that are killed while they call a model; the server's own log is the judge."""

import os
import signal
import subprocess
import threading
from collections import Counter

from hltm_spark.pipeline.tables import LLM_CALLS
from tests.builders import raw_document
from tests.llm_server import LlmServer, delayed, serve_llm
from tests.spark.conftest import MakeMemory, Memory

AT_ONCE = 4
ROWS = [
    raw_document(f"d{number}", project=f"p{number:02}", text=f"Location: Turku {number}")
    for number in range(40)
]


def workers() -> set[int]:
    """Return the Python workers that Spark started for this process."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,ppid,command"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[1:]
    processes = [line.split(maxsplit=2) for line in listed]
    parents = {int(pid): int(parent) for pid, parent, _ in processes}
    daemons = {int(pid) for pid, _, command in processes if "pyspark.daemon" in command}
    return {pid for pid in daemons if parents[pid] in daemons and is_ours(pid, parents)}


def is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def kill_workers(server: LlmServer, *, after: int, stop: threading.Event) -> None:
    """Kill every worker once the server was asked so often."""
    while len(server.chats) < after and not stop.wait(0.01):
        pass
    for pid in workers():
        os.kill(pid, signal.SIGKILL)


def killed_run(memory: Memory, server: LlmServer, *, after: int) -> None:
    stop = threading.Event()
    killer = threading.Thread(
        target=kill_workers, args=(server,), kwargs={"after": after, "stop": stop}
    )
    killer.start()
    try:
        run = memory.run()
    finally:
        stop.set()
        killer.join()
    assert (run.status, run.failed, run.nodes_written) == ("done", 0, len(ROWS) + 2)


def judge(memory: Memory, server: LlmServer) -> None:
    asked = Counter(call.prompt for call in server.chats)
    ledger = memory.read(LLM_CALLS).select("tenant_id", "request_hash").collect()
    assert len(ledger) == len(set(ledger)) == len(asked), "an answer is missing or there twice"
    assert asked.total() - len(asked) <= AT_ONCE, "more was paid twice than was in flight"


def by_spark(make_memory: MakeMemory, server: LlmServer) -> Memory:
    llm = {"provider": "openai", "model": "m", "base_url": server.base_url}
    memory = make_memory(llm={**llm, "max_concurrency": AT_ONCE}, budgets={"small_run_nodes": 0})
    memory.ingest(*ROWS)
    return memory


def test_what_a_killed_worker_was_answered_is_not_paid_again(make_memory: MakeMemory) -> None:
    with serve_llm(lambda _: delayed(0.03)) as server:
        memory = by_spark(make_memory, server)

        killed_run(memory, server, after=25)

        judge(memory, server)
