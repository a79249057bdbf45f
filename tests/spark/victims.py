"""Processes of a run: which there are, and how one of them is killed."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path


def stop(run: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of a run."""
    for pid in [*below(run.pid, processes_now()), run.pid]:
        kill(pid)
    run.wait()


Processes = Mapping[int, tuple[int, str]]
"""Parent and command line, by process id."""


def processes_now() -> Processes:
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in listed]
    return {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) == 3}


def below(pid: int, processes: Processes) -> list[int]:
    children = [one for one, (parent, _) in processes.items() if parent == pid]
    return [*children, *(p for child in children for p in below(child, processes))]


def named_below(pid: int, name: str) -> list[int]:
    processes = processes_now()
    return [one for one in below(pid, processes) if name in processes[one][1]]


def workers_below(*pids: int) -> list[int]:
    """Return the Python workers below some processes; where some are at calls, only those."""
    processes = processes_now()
    everyone = [one for pid in pids for one in below(pid, processes)]
    daemons = [one for one in everyone if "pyspark.daemon" in processes[one][1]]
    forks = [one for one in daemons if processes[one][0] in daemons]
    return [one for one in forks if open_files(one, ".lock")] or forks


def open_files(pid: int, ending: str) -> list[Path]:
    """Return the files with that ending which a process holds open; none without /proc."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # closed, or gone, just now
            found.append(fd.readlink())
    return [file for file in found if file.suffix == ending]


def send_signal(number: int, *pids: int) -> bool:
    """Send a signal; tell whether any of the processes was still there."""
    sent_to = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            sent_to += 1
    return sent_to > 0


def kill(*pids: int) -> bool:
    return send_signal(signal.SIGKILL, *pids)


def kill_executor(pid: int) -> bool:
    """Kill one of the executors; one whose workers are at calls, where there is any."""
    executors = named_below(pid, "CoarseGrainedExecutorBackend")
    at_calls = [one for one in executors if any(open_files(w, ".lock") for w in workers_below(one))]
    return kill(*(at_calls or executors)[:1])


def kill_group(pid: int) -> bool:
    os.killpg(pid, signal.SIGKILL)
    return True


VICTIMS: Mapping[str, Callable[[int], bool]] = {
    "worker": lambda pid: kill(*workers_below(pid)[:1]),
    "executor": kill_executor,
    "driver": kill_group,
    "driver's Python": kill,
    "driver's JVM": lambda pid: kill(*named_below(pid, "org.apache.spark.deploy.SparkSubmit")),
}
"""What is killed, given the process that was started; False where there was nothing to kill."""
DRIVERS = frozenset({"driver", "driver's Python", "driver's JVM"})
"""Victims without which a run cannot go on."""
