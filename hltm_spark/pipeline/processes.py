"""What tells one process from another, and whether it is still alive."""

import os
import socket
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Process(BaseModel):
    """A process, and what is needed to say from elsewhere that it is dead.

    Attributes:
        host: Host name.
        pid: Process id, in its own pid namespace.
        started: Start in clock ticks since boot; null where there is no /proc.
        boot_id: Changes with each boot; null where there is no /proc.
        pid_namespace: Containers of one host count their pids apart; null where there is no /proc.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: str | None
    boot_id: str | None
    pid_namespace: str | None


def is_dead(process: Process) -> bool:
    """Return whether a process is known to be dead; False for one of another host or boot."""
    here, fields = this_process(), {"host", "boot_id", "pid_namespace"}
    if process.model_dump(include=fields) != here.model_dump(include=fields):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's: alive
        pass
    state, started = _state_and_start(process.pid)
    if state in {"Z", "X"}:  # killed, and not yet waited for by its parent
        return True
    return None not in {started, process.started} and started != process.started


def this_process() -> Process:
    """Return this process as others may look at it."""
    pid = os.getpid()
    return Process(
        host=socket.gethostname(),
        pid=pid,
        started=_state_and_start(pid)[1],
        boot_id=_text_or_none(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=_link_or_none(Path("/proc/self/ns/pid")),
    )


def _state_and_start(pid: int) -> tuple[str | None, str | None]:
    """Return a process's state letter and start time, or nulls where /proc does not tell."""
    stat = _text_or_none(Path(f"/proc/{pid}/stat"))
    if stat is None:
        return None, None
    fields = stat.rpartition(")")[2].split()  # the program's name before it may hold blanks
    return fields[0], fields[19]


def _text_or_none(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _link_or_none(file: Path) -> str | None:
    try:
        return str(file.readlink())
    except OSError:
        return None
