"""Batch mode inside a run: its ledger, its lease, and its requests as the two ways have them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from hltm_spark.core.errors import LlmStopError
from hltm_spark.pipeline.batch_parts import Rows
from hltm_spark.pipeline.batch_records import BatchRecords
from hltm_spark.pipeline.batches import Batches, BatchPlace
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.journal_fold import append_journalled

logger = logging.getLogger("hltm_spark")

_ORDER = ("tenant_id", "request_hash")


def open_batches(context: RunContext) -> None:
    """Give a run its batches, and bring those of earlier runs into the ledger, in any mode.

    Raises:
        BatchesLeftError: The endpoint cannot be reached.
        LlmStopError: The key is refused, or a batch is not known there.
    """
    llm, folder = context.settings.llm, context.root.batches()
    is_left = any(folder.glob("*.json"))
    if llm.provider != "openai":
        if is_left:
            logger.warning("%s has batches that llm.provider 'openai' would collect", folder)
        return
    if llm.execution != "batch" and not is_left:
        return
    context.batches = _make(context)
    with context.run.timed("calls"):
        context.batches.collect_left()


def close_batches(context: RunContext) -> None:
    """Release what `open_batches` took, and tell of batches that go on without this run."""
    if context.batches is not None:
        context.batches.close()


def is_batched(context: RunContext) -> bool:
    """Tell whether a run's requests go out in batches."""
    return context.batches is not None and context.settings.llm.execution == "batch"


def answer_frame(context: RunContext, waiting: DataFrame) -> None:
    """Answer staged requests; the answers are in the ledger when this returns."""

    def rows() -> Iterator[Mapping[str, Any]]:
        return (row.asDict() for row in waiting.orderBy(*_ORDER).toLocalIterator())

    for _ in _answers(context, rows):
        pass  # they are read from the ledger


def answer_rows(
    context: RunContext, waiting: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the answers to requests in this process, which the ledger has then."""
    ordered = sorted(waiting, key=lambda row: [row[name] for name in _ORDER])
    return _answers(context, lambda: ordered)


def _answers(context: RunContext, rows: Rows) -> Iterator[dict[str, Any]]:
    assert context.batches is not None  # noqa: S101  # `is_batched` was asked
    try:
        yield from context.batches.answers(rows)
    except LlmStopError:
        context.close_calls()
        raise


def _make(context: RunContext) -> Batches:
    scratch = Path(context.staging("batches"))

    def keep(journal: Journal) -> None:
        files = journal.on_disk(scratch)
        append_journalled(context.spark, context.root, context.commits, files)

    place = BatchPlace(
        records=BatchRecords(context.root.batches()),
        scratch=scratch,
        salt=context.root.salt,
        keep=keep,
        check=context.commits.lease.check,
    )
    return Batches(context.call_settings(slots=1), place)
