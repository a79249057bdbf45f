"""Two ways to write a worker's answers: appended to one file, or as whole files that never change.

A disk and a shared mount take every line at once. An object store takes whole files only, so lines
wait until they are many or old: a process that is killed loses those that wait.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

ROLL_LINES = 64
"""Lines of one file in an object store, at most."""
ROLL_AGE_S = 5.0
"""Seconds that a line waits for others, at most."""


class Lines(Protocol):
    """Takes lines from any thread of a process."""

    def append(self, line: str) -> None:
        """Take one line, with its end."""
        ...

    def check(self) -> None:
        """Raise what kept lines from being written: what is paid for next would be lost too."""
        ...

    def flush(self) -> None:
        """Write what waits."""
        ...

    def close(self) -> None:
        """Write what waits, and take no more."""
        ...


@dataclass(slots=True)
class AppendedLines:
    """One file that grows: a line that was taken survives the process."""

    file: Any
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, line: str) -> None:
        """Write one line, with its end."""
        with self._lock:
            self.file.write(line)
            self.file.flush()

    def check(self) -> None:
        """Return: what cannot be written raises at once."""

    def flush(self) -> None:
        """Return: no line waits."""

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class RolledLines:
    """Whole files of at most `ROLL_LINES` lines, written once the oldest is `ROLL_AGE_S` old."""

    def __init__(self, write: Callable[[int, str], None]) -> None:
        """Start empty.

        Args:
            write: Writes a file, from its number (from 0) and its content.
        """
        self._write = write
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._files: list[tuple[int, str]] = []  # to be written: number, content
        self._due_at = 0.0
        self._count = 0
        self._problem: Exception | None = None
        self._is_closed = False
        self._timer: threading.Thread | None = None

    def append(self, line: str) -> None:
        """Take one line, with its end; the one that fills a file writes it."""
        self.check()
        with self._changed:
            self._waiting.append(line)
            is_full = len(self._waiting) >= ROLL_LINES
            if len(self._waiting) == 1:
                self._due_at = time.monotonic() + ROLL_AGE_S
                self._start_timer()
                self._changed.notify()
        if is_full:
            self.flush()

    def check(self) -> None:
        """Raise what kept lines from being written; they still wait."""
        if self._problem is not None:
            raise self._problem

    def flush(self) -> None:
        """Write what waits; it still waits where that fails."""
        with self._changed:
            if self._waiting:
                self._files.append((self._count, "".join(self._waiting)))
                self._waiting = []
                self._count += 1
            files, self._files = self._files, []
        try:
            while files:
                self._write(*files[0])
                del files[0]
        except Exception as problem:
            with self._changed:
                # under its number: it may be there although the answer to the request is not
                self._files = files + self._files
                self._problem = problem
            raise

    def close(self) -> None:
        """Write what waits, and end the timer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._timer is not None:
            self._timer.join()
        self.flush()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Thread(target=self._flush_old, name="hltm-journal", daemon=True)
            self._timer.start()

    def _flush_old(self) -> None:
        while True:
            with self._changed:
                wait_s = self._due_at - time.monotonic() if self._waiting else None
                if self._is_closed or self._problem is not None:
                    return
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
            try:
                self.flush()
            except Exception:  # noqa: BLE001 - kept: the next line or `close` raises it
                return
