"""The record of batches that are at the provider: durable, so that no run loses or repeats one.

In `<root>/batches/`, two files a batch, named by a random key:

    KEY.rows   one JSON object a request: which it is, not its text; written first
    KEY.json   the batch: written before it is started, and again with the provider's id

Only a repair stands there as a whole, with the answer that it is to mend: nothing else could write
it again. A `.rows` file alone is of a batch that was never started. Both go once the answers are in
the ledger, the `.json` first.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from hltm_spark.core.errors import EnvironmentProblem
from hltm_spark.models.llm import Request
from hltm_spark.pipeline.durable import sync_file, sync_folder, write_synced


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """One request of a batch.

    Attributes:
        custom_id: Its name in the batch file: a salted hash of tenant and request hash.
        row: The `llm_calls` row that its answer makes, with nothing of an answer in it.
        task: Of the node, as failures name it.
        output: Key of `OUTPUTS`.
        source_ids: Ids that the prompt showed.
        tries: How often it was sent, this time included.
        problem: What was wrong with the answer that this request repairs; empty for no repair.
        repair: The request itself where it is a repair: nothing else could write it again.
    """

    custom_id: str
    row: Mapping[str, Any]
    task: str
    output: str
    source_ids: tuple[str, ...]
    tries: int = 1
    problem: str = ""
    repair: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return what `to_line` wrote."""
        fields = json.loads(line)
        return cls(**{**fields, "source_ids": tuple(fields["source_ids"])})

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=True) + "\n"

    def repair_request(self) -> Request:
        """Return the request of a repair."""
        return Request(
            task=self.row["task"],
            output=self.output,
            system=self.repair["system"],
            user=self.repair["user"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One batch, from the moment before it is started until its answers are in the ledger.

    Attributes:
        key: Stands in the batch's metadata.
        batch_id: The provider's; empty until it is known.
        base_url: Where it is; empty is OpenAI's own.
        mode: Mode of structured output that its requests have.
        count: Requests in it.
        made_at: Unix time.
    """

    key: str
    input_file_id: str
    batch_id: str = ""
    base_url: str
    mode: str
    count: int
    made_at: float


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """The records of one root; only the holder of its lease may write them."""

    folder: Path

    def new_key(self) -> str:
        """Return a key that no other batch has."""
        return secrets.token_hex(16)

    def rows_file(self, key: str) -> Path:
        """Return the file for the requests of a batch."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{key}.rows"

    def write(self, record: BatchRecord) -> None:
        """Write a record; it survives a power loss when this returns."""
        scratch = self.folder / f"{record.key}.part"
        sync_file(self.rows_file(record.key))
        write_synced(scratch, json.dumps(asdict(record)))
        scratch.replace(self.folder / f"{record.key}.json")
        sync_folder(self.folder)

    def left(self) -> list[BatchRecord]:
        """Return the records of earlier runs, the oldest first; sweep what is of none.

        Raises:
            EnvironmentProblem: A record cannot be read.
        """
        records = [self._read(file) for file in self.folder.glob("*.json")]
        keys = {record.key for record in records}
        for file in (*self.folder.glob("*.rows"), *self.folder.glob("*.part")):
            if file.stem not in keys or file.suffix == ".part":
                file.unlink()
        return sorted(records, key=lambda record: (record.made_at, record.key))

    def asked(self, record: BatchRecord) -> dict[str, SentRequest]:
        """Return the requests of a batch by custom id."""
        with self.rows_file(record.key).open(encoding="utf-8") as lines:
            found = [SentRequest.from_line(line) for line in lines]
        return {asked.custom_id: asked for asked in found}

    def remove(self, record: BatchRecord) -> None:
        """Remove a record whose answers are in the ledger, or that was never started."""
        (self.folder / f"{record.key}.json").unlink(missing_ok=True)
        self.rows_file(record.key).unlink(missing_ok=True)

    def _read(self, file: Path) -> BatchRecord:
        try:
            return BatchRecord(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise EnvironmentProblem(
                f"{file} is damaged; put it back from a backup, or remove it: "
                "what its batch was paid for is then lost"
            ) from None
