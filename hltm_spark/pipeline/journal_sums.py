"""What the journal of a run sums up to while it grows."""

import json
import threading
from dataclasses import dataclass, field, replace

from hltm_spark.models.budgets import Spent
from hltm_spark.pipeline.journal_store import JournalStore, whole_lines


@dataclass(slots=True)
class Spending:
    """The sums over a run's journal while it grows: every line is read once, by any thread."""

    store: JournalStore
    _spent: Spent = field(default_factory=Spent)
    _read: dict[str, int] = field(default_factory=dict)  # bytes that were read, by file
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> Spent:
        """Return what was paid until now; a line that is being written counts the next time."""
        with self._lock:
            files = self.store.files(".jsonl")
            grown = [name for name, size in files if size > self._read.get(name, 0)]
            for name, stream in zip(grown, self.store.streams(grown), strict=True):
                stream.seek(self._read.get(name, 0))
                for line in whole_lines(stream):
                    self._read[name] = self._read.get(name, 0) + len(line)
                    self._add(json.loads(line))
            return replace(self._spent)

    def _add(self, answer: dict[str, int]) -> None:
        self._spent.add(answer["prompt_tokens"], answer["completion_tokens"])


def read_spent(store: JournalStore) -> Spent:
    """Return the sums over a run's journal."""
    return Spending(store).read()
