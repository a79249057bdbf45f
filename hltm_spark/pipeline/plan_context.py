"""A run that writes nothing outside its staging folder, and predicts what it would be answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.pipeline.calls import OPEN_REQUEST, CallSettings
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.items import CHILD_FIELDS, NODE_ID
from hltm_spark.pipeline.journal_store import JournalStore
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.predict import PredictingClient, predict_answers
from hltm_spark.pipeline.runs import Run
from hltm_spark.pipeline.tables import (
    LLM_CALLS,
    MEMORY,
    Table,
)


@dataclass(kw_only=True)
class PlanRun(Run):
    """A run that keeps its counts by level.

    Attributes:
        levels: (nodes touched, answers from the ledger) by level.
    """

    levels: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, level: str, *, touched: int = 0, cached: int = 0) -> None:
        """Count, of the level as well."""
        super().count(level, touched=touched, cached=cached)
        nodes, answers = self.levels.get(level, (0, 0))
        self.levels[level] = (nodes + touched, answers + cached)


@dataclass(kw_only=True)
class PlanContext(RunContext):
    """A run that writes nothing outside its staging folder.

    Attributes:
        is_full: The tree is taken as empty.
        versions: Of the tables at the start, by name; a table that is not there has none.
        latest: The frame that was staged last, by the first word of its name.
        client: Predicts answers.
    """

    is_full: bool
    versions: Mapping[str, int]
    client: PredictingClient
    latest: dict[str, DataFrame] = field(default_factory=dict)

    def stage(self, rows: DataFrame, name: str) -> tuple[DataFrame, int]:
        """Stage rows, and keep the frame at hand."""
        staged = super().stage(rows, name)
        self.latest[name.partition("-")[0]] = staged[0]
        return staged

    def call_settings(self, *, slots: int) -> CallSettings:
        """Return settings with which no model is called."""
        client = self.client
        return replace(super().call_settings(slots=slots), make_client=lambda *_: client)

    @property
    def journal(self) -> JournalStore:
        """A folder that goes with the staging folder."""
        return self.meter.journal

    @property
    def stored(self) -> DataFrame:
        """The tree at the start."""
        return self.pinned(MEMORY)

    @property
    def memory(self) -> DataFrame:
        """The tree that the run starts from."""
        return self.stored.limit(0) if self.is_full else self.stored

    @property
    def paid(self) -> DataFrame:
        """The answers on record, those included that a dead run left in its journal."""
        ledger = self.pinned(LLM_CALLS)
        return ledger.unionByName(self.latest["left"]) if "left" in self.latest else ledger

    @property
    def ledger(self) -> DataFrame:
        """The answers on record, and those that were predicted so far."""
        return self.paid.unionByName(self.predicted) if self.has_predicted else self.paid

    @property
    def has_predicted(self) -> bool:
        """Tell whether any request was open so far."""
        return Path(self.staging("predicted")).exists()

    @property
    def predicted(self) -> DataFrame:
        """The predicted answers, as rows of the ledger."""
        return self.staged("predicted", LLM_CALLS.schema)

    def pinned(self, table: Table) -> DataFrame:
        """Return a table as it was at the start."""
        if table.name not in self.versions:
            return self.spark.createDataFrame([], table.schema)
        return table.read(self.spark, self.root.path, version=self.versions[table.name])

    def pinned_files(self, table: Table) -> list[str]:
        """Return the data files of a table as it was at the start."""
        version = self.versions.get(table.name)
        return [] if version is None else table.files(self.root.path, version=version)


@dataclass(slots=True)
class Predictions:
    """Stands where a run has `Commits`: what goes to the ledger goes to the staging folder."""

    context: PlanContext | None = None

    def append(self, _table: Table, answers: DataFrame) -> None:
        """Keep predicted answers: those of a small run as they are.

        Those of a run by Spark are predicted here, to the requests that were staged last: the
        calls, which are never made, have no stored memory to go by.
        """
        context = cast("PlanContext", self.context)
        if "open" in context.latest:
            answers = _predicted(context, context.latest["open"])
        answers.write.mode("append").parquet(context.staging("predicted"))


def _predicted(context: PlanContext, waiting: DataFrame) -> DataFrame:
    """Return ledger rows for open requests, from the size of the node's stored memory."""
    client, run_id = context.client, context.run.run_id
    stored = context.stored.join(waiting.select(*NODE_ID).distinct(), NODE_ID, "left_semi")
    known = stored.select(*NODE_ID, F.struct(*CHILD_FIELDS).alias("stored"))
    rows = waiting.select(*OPEN_REQUEST.names).join(known, NODE_ID, "left")
    spread = rows.repartition(context.slots)
    return map_rows(
        spread, lambda given: predict_answers(given, client, run_id=run_id), LLM_CALLS.schema
    )
