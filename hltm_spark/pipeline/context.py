"""What every step of one run shares: settings, root, pinned tables, staging and journal."""

import uuid
from dataclasses import dataclass

from pyarrow.compute import Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import BudgetReachedError, EndpointDownError, LlmStopError
from hltm_spark.models.prices import cost
from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.batches import Batches
from hltm_spark.pipeline.budget import Meter
from hltm_spark.pipeline.calls import CallSettings
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.files import row_count
from hltm_spark.pipeline.journal import answers_of
from hltm_spark.pipeline.journal_place import open_journals
from hltm_spark.pipeline.journal_stop import BUDGET, DOWN, read_stop
from hltm_spark.pipeline.journal_store import JournalStore
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.runs import Run
from hltm_spark.pipeline.session import task_slots
from hltm_spark.pipeline.tables import DOCUMENTS, LLM_CALLS, MEMORY


@dataclass(slots=True, kw_only=True)
class RunContext:
    """One run at work.

    Attributes:
        commits: The only way to write a table: fenced by the run's lease.
        meter: Holds what is spent against the run's budget.
        batches: At the provider, where there are any or requests go out in them.
    """

    spark: SparkSession
    settings: Settings
    root: Root
    run: Run
    prompts: NodePrompts
    commits: Commits
    meter: Meter
    batches: Batches | None = None

    def stage(self, rows: DataFrame, name: str) -> tuple[DataFrame, int]:
        """Write rows once to the run's staging folder; return them read back, and a count."""
        path = self.staging(name)
        schema = rows.schema
        rows.write.parquet(path)
        return self.spark.read.schema(schema).parquet(path), row_count(path)

    def staged(self, name: str, schema: StructType) -> DataFrame:
        """Return the rows of a staged frame."""
        return self.spark.read.schema(schema).parquet(self.staging(name))

    def staging(self, name: str) -> str:
        """Return the path of one staged frame."""
        return str(self.root.staging(self.run.run_id) / name)

    def staged_count(self, name: str, where: Expression) -> int:
        """Return how many rows of a staged frame fulfil a condition: no Spark job."""
        return row_count(self.staging(name), where)

    @property
    def slots(self) -> int:
        """Tasks that run at once."""
        return task_slots(self.spark)

    @property
    def journal(self) -> JournalStore:
        """This run's journal."""
        return open_journals(self.settings, self.root).within(self.run.run_id)

    @property
    def documents(self) -> DataFrame:
        """The pinned snapshot."""
        return DOCUMENTS.read(self.spark, self.root.path, version=self.run.documents_version)

    @property
    def memory(self) -> DataFrame:
        """The tree before this run's MERGE."""
        return MEMORY.read(self.spark, self.root.path)

    @property
    def ledger(self) -> DataFrame:
        """The answers on record now."""
        return LLM_CALLS.read(self.spark, self.root.path)

    def call_slots(self, count: int) -> int:
        """Return how many workers answer so many requests side by side."""
        llm = self.settings.llm
        return max(1, min(llm.workers or self.slots, llm.max_concurrency, count))

    def call_settings(self, *, slots: int) -> CallSettings:
        """Return what `slots` workers need to answer requests side by side."""
        return CallSettings(
            settings=self.settings,
            prompts=self.prompts,
            journal=self.journal.location,
            stage=uuid.uuid4().hex,
            workers=slots,
            run_id=self.run.run_id,
            make_client=make_llm,
        )

    @property
    def is_stopped(self) -> bool:
        """Tell whether requests were left out that the run cannot do without."""
        return read_stop(self.journal) is not None

    def raise_if_stopped(self) -> None:
        """Raise what kept the run from making a request; what it paid is in the ledger by now.

        Raises:
            LlmStopError: A worker met what no further request can survive.
            EndpointDownError: The endpoint stayed down.
            BudgetReachedError: A budget is used up, with requests left to make.
        """
        stop, run = read_stop(self.journal), self.run
        if stop is None:
            return
        self.close_calls()
        self.journal.clear()
        if stop.kind != BUDGET:
            raise (EndpointDownError if stop.kind == DOWN else LlmStopError)(stop.message)
        tokens = run.prompt_tokens + run.completion_tokens
        raise BudgetReachedError(
            f"{stop.message}: this run paid {run.calls} calls, {tokens} tokens, "
            f"cost {run.cost:.4f}; the memory is as it was, and the answers are in the ledger: "
            "run it again to go on"
        )

    def close_calls(self) -> None:
        """Count what was paid, and remove it from the journal: it is in the ledger."""
        run, spent = self.run, self.meter.spent()
        run.calls, run.prompt_tokens = spent.calls, spent.prompt_tokens
        run.completion_tokens = spent.completion_tokens
        run.cost = cost(self.settings, spent.prompt_tokens, spent.completion_tokens)
        answers_of(self.journal).clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The nodes of a run, not merged yet.

    Attributes:
        written: `WRITTEN` rows, read back from staging; None where nothing was written.
        gone: tenant_id, node_id of stored nodes without any document left; None for none.
        failed_count: Nodes that are not complete: every one is written again in each run.
        is_all_new: True where none of the written nodes has a row in `memory` and none is gone.
    """

    written: DataFrame | None
    gone: DataFrame | None
    written_count: int
    gone_count: int
    failed_count: int = 0
    is_all_new: bool = False
