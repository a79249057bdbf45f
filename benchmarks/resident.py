"""Memory and processor time of this process, of the JVM that it started, and of its workers."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
_EVERY_S = 0.2


@dataclass(slots=True)
class Peaks:
    """Peak resident memory in MB; 0 where there is no /proc.

    Attributes:
        driver: This process.
        jvm: The JVM.
        workers: Every process that the JVM started: Python workers, and the daemon that forks them.
    """

    driver: float = 0.0
    jvm: float = 0.0
    workers: dict[int, float] = field(default_factory=dict)

    @property
    def worker(self) -> float:
        """Peak of the largest worker."""
        return max(self.workers.values(), default=0.0)


@contextmanager
def watch_peaks() -> Iterator[Peaks]:
    """Sample the processes' own high-water marks until the block ends.

    A mark counts from the begin of the block, where the system lets it be set back.
    """
    peaks, stop = Peaks(), threading.Event()
    for pid in (os.getpid(), *_descendants()):
        _set_back(pid)

    def watch() -> None:
        while not stop.wait(_EVERY_S):
            _sample(peaks)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        _sample(peaks)
        stop.set()
        thread.join()


def worker_cpu_s() -> float:
    """Return the processor time so far of every process that the JVM started; 0 without /proc."""
    return sum(_cpu_s(pid) for pid in _workers())


def _workers() -> set[int]:
    parents = _descendants()
    jvms = {pid for pid in parents if _text(pid, "comm").strip() == "java"}
    return {pid for pid in parents if pid not in jvms and jvms & set(_line_of(pid, parents))}


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its children that ended."""
    fields = _text(pid, "stat").rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15])) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _sample(peaks: Peaks) -> None:
    peaks.driver = max(peaks.driver, _peak(os.getpid()))
    for pid in _descendants():
        if _text(pid, "comm").strip() == "java":
            peaks.jvm = max(peaks.jvm, _peak(pid))
    for pid in _workers():
        peaks.workers[pid] = max(peaks.workers.get(pid, 0.0), _peak(pid))


def _descendants() -> dict[int, int]:
    """Return the parent of every process that this one started, itself or through others."""
    parents = {
        int(folder.name): int(found[1])
        for folder in PROC.glob("[0-9]*")
        if (found := re.search(r"^PPid:\s*(\d+)", _text(int(folder.name), "status"), re.MULTILINE))
    }
    return {pid: parent for pid, parent in parents.items() if os.getpid() in _line_of(pid, parents)}


def _line_of(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """Yield the processes above one, nearest first."""
    while pid in parents:
        pid = parents[pid]
        yield pid


def _peak(pid: int) -> float:
    found = re.search(r"^VmHWM:\s*(\d+) kB", _text(pid, "status"), re.MULTILINE)
    return round(int(found[1]) / 1024, 1) if found else 0.0


def _set_back(pid: int) -> None:
    with suppress(OSError):  # it ended, or the system does not let us
        (PROC / str(pid) / "clear_refs").write_text("5", encoding="ascii")


def _text(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # it ended
