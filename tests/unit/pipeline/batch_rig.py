"""A root without tables on which batches run over real HTTP."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.batch_records import BatchRecords
from hltm_spark.pipeline.batches import Batches, BatchPlace
from hltm_spark.pipeline.calls import CallSettings
from hltm_spark.pipeline.journal import Journal
from tests.batch_server import BatchServer
from tests.builders import document, node, settings

SECRET = "the applicant's secret"
KEY = "sk-test-key"


@dataclass
class Rig:
    """A root without tables: a list stands for the ledger, and survives what a kill does."""

    root: Path
    server: BatchServer
    llm: dict[str, Any] = field(default_factory=dict)
    count: int = 5
    text: str = "Location: Turku"
    ledger: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0

    @property
    def folder(self) -> Path:
        return self.root / "batches"

    @property
    def journal(self) -> Path:
        return self.root / "journal" / f"run-{self.runs}"

    def call(self) -> CallSettings:
        given = {"provider": "openai", "model": "m", "base_url": self.server.base_url}
        given |= {"execution": "batch", "batch_poll_s": 0.001, "max_retry_s": 5.0, **self.llm}
        chosen = settings(llm=given)
        prompts = NodePrompts.load(chosen)
        return CallSettings(
            settings=chosen,
            prompts=prompts,
            journal=str(self.journal),
            stage="only",
            workers=1,
            run_id=f"run-{self.runs}",
            make_client=make_llm,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return every request, as a level's wave has them: two tenants, half of the rows each."""
        prompts, made = self.call().prompts, []
        for number in range(self.count):
            tenant = "acme" if number % 2 else "nordic"
            text = f"{self.text}\n{SECRET} {number // 2}"
            given = node(
                document(f"d{number // 2}", text=text),
                tenant_id=tenant,
                node_id=f"{tenant}/s1/p{number // 2}",
                level="project",
            )
            request = prompts.request(given, "fused", summary=None, is_group=False)
            made.append(
                {
                    "tenant_id": tenant,
                    "tenant_key": f"key of {tenant}",
                    "node_id": given.node_id,
                    "level": "project",
                    "task": "fused",
                    "request_hash": prompts.request_hash(request, tenant_id=tenant),
                    "summary": None,
                    "payload": json.dumps(given.to_dict()),
                }
            )
        return sorted(made, key=lambda row: (row["tenant_id"], row["request_hash"]))

    def open_rows(self) -> list[dict[str, Any]]:
        answered = {key(row) for row in self.ledger if row["is_usable"]}
        return [row for row in self.rows() if key(row) not in answered]

    def keep(self, journal: Journal) -> None:
        self.take(journal.answers())

    def take(self, rows: Iterable[dict[str, Any]]) -> None:
        known = {(row["tenant_id"], row["request_hash"], row["run_id"]) for row in self.ledger}
        for row in rows:
            if (row["tenant_id"], row["request_hash"], row["run_id"]) not in known:
                self.ledger.append(row)

    def run(self) -> list[dict[str, Any]]:
        """Do what a run does: fold journals, collect what is left, ask for the rest."""
        for file in (self.root / "journal").rglob("*.jsonl"):
            self.take(map(json.loads, file.read_text(encoding="utf-8").splitlines()))
        self.runs += 1
        place = BatchPlace(
            records=BatchRecords(self.folder),
            scratch=self.root / "staging" / f"run-{self.runs}",
            salt="salt",
            keep=self.keep,
            check=lambda: None,
        )
        batches = Batches(self.call(), place)
        try:
            batches.collect_left()
            rows = self.open_rows()
            return list(batches.answers(lambda: rows))
        finally:
            batches.close()

    def failures(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.journal.glob("*.failure")]

    def is_complete(self) -> bool:
        return not self.open_rows() and not list(self.folder.iterdir())


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["tenant_id"], row.get("repair_of") or row["request_hash"]
