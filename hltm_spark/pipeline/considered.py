"""Which nodes a run looks at: those that the change feed names since the cursor, or every one."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.changes import NODE, changed_paths, readable_feed
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.runs import Cursor, Run


@contextmanager
def considered_paths(
    context: RunContext, cursor: Cursor | None, *, every: str = ""
) -> Iterator[tuple[DataFrame, str]]:
    """Give the nodes that something happened to, and why these, in words.

    The feed is read only where the frame is: the block must do that, so that a feed that cannot be
    read is told in words.

    Args:
        context: The run, pinned.
        cursor: Where the last finished run ended, None where there is none.
        every: Why every node is looked at, whatever the cursor; empty to follow the feed.

    Yields:
        One row per (tenant_id, node_id): keys; and the reason.

    Raises:
        DataError: The feed does not continue from the cursor, or cannot be read.
    """
    run = context.run
    every = every or _why_every(cursor, run)
    if cursor is None or every:
        documents, memory = context.documents.select(*NODE), context.memory.select(*NODE)
        yield documents.unionByName(memory).distinct(), every
        return
    _check(cursor, run)
    why = f"what changed after version {cursor.version} of the documents"
    unfinished = context.memory.where("status != 'complete'").select(*NODE)
    if cursor.version == run.documents_version:
        yield unfinished, why
        return
    window = {"start": cursor.version + 1, "end": run.documents_version}
    with readable_feed(**window):
        feed = changed_paths(context.spark, context.root, **window)
        yield feed.unionByName(unfinished).distinct(), why


def _why_every(cursor: Cursor | None, run: Run) -> str:
    if cursor is None:
        return "every node, since no run has finished yet"
    if cursor.memory_table_id != run.memory_table_id:
        return "every node, since the memory table was made anew after the last run"
    if cursor.settings_fingerprint != run.settings_fingerprint:
        return "every node, since prompts, model or levels changed after the last run"
    return ""


def _check(cursor: Cursor, run: Run) -> None:
    """Raise where the documents table is another one than the last run read."""
    if cursor.table_id != run.documents_table_id or cursor.version > run.documents_version:
        raise DataError(
            "the documents table is not the one that the last run read (renamed, or made anew), "
            "so its change feed does not continue; put that table back, or run `hltm index`, "
            "which brings the memory to what is in this one"
        )
