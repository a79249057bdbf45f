"""The levels of a run with many nodes: every step is a frame, staged once and read back.

From the deepest level up to the tenant:
  1. gather the inputs of the candidates, and drop those whose memory was written from the same;
  2. reduce the inputs that are too wide for one prompt in groups (`groups`);
  3. look the requests up in the ledger, call the model for the open ones, append what was paid;
  4. assemble the nodes from answers on record, and stage them durably;
  5. their staged memories are what the next level up is written from.
"""

import logging

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.pipeline.answers import answer_inputs
from hltm_spark.pipeline.changes import mark_candidates
from hltm_spark.pipeline.context import Outcome, RunContext
from hltm_spark.pipeline.groups import reduce_wide
from hltm_spark.pipeline.items import child_items, document_items
from hltm_spark.pipeline.journal_fold import has_failures
from hltm_spark.pipeline.memory import WRITTEN, assemble, keep_previous
from hltm_spark.pipeline.requests import INPUTS, gather_inputs

logger = logging.getLogger("hltm_spark")


def write_levels(context: RunContext, paths: DataFrame) -> Outcome:
    """Write the nodes that changed and their ancestors.

    Args:
        context: The run.
        paths: One row per node that something happened to: tenant_id, node_id, keys.
    """
    with context.run.timed("changes"):
        marked = mark_candidates(paths, context.documents, context.memory)
        candidates, _ = context.stage(marked, "candidates")
    written: DataFrame | None = None
    failed = 0
    for depth in reversed(range(len(context.settings.levels))):
        name = _write_level(context, candidates, written, depth=depth)
        if name:
            at_depth = context.staged(name, WRITTEN)
            written = at_depth if written is None else written.unionByName(at_depth)
            failed += context.staged_count(name, pc.field("status") != "complete")
    gone = candidates.where("NOT is_alive AND is_stored").select("tenant_id", "node_id")
    return Outcome(
        written=written,
        gone=gone,
        written_count=context.run.nodes_touched,
        gone_count=gone.count(),
        failed_count=failed,
        is_all_new=not context.staged_count("candidates", pc.field("is_stored")),
    )


def _write_level(
    context: RunContext, candidates: DataFrame, written: DataFrame | None, *, depth: int
) -> str:
    """Write the candidates of one level; return the name of its staged rows, '' if none changed."""
    run, level = context.run, context.settings.level_names[depth]
    with run.timed("gather"):
        due = candidates.where((F.col("depth") == depth) & F.col("is_alive"))
        due = due.drop("is_alive", "is_stored")
        items = document_items(context.documents, due)
        if depth + 1 < len(context.settings.levels):
            children = _children(context, candidates, written, depth=depth + 1)
            items = items.unionByName(child_items(children, due))
        gathered = gather_inputs(items, context.prompts, level=level, slots=context.slots)
        folded, count = context.stage(gathered, f"inputs-{depth}")
        inputs = folded.where("position IS NULL").select(*INPUTS.names)
        wide = context.staged_count(f"inputs-{depth}", pc.field("position").is_valid())
    touched = count - wide
    run.count(level, touched=touched)
    if not touched:
        return ""
    logger.info("level %s: %d nodes to write", level, touched)
    if wide:
        inputs = reduce_wide(context, folded, depth=depth)
    answered = answer_inputs(context, inputs, level=level, nodes=touched, name=f"{depth}")
    with run.timed("assemble"):
        nodes = assemble(inputs, answered, context.prompts, run_id=run.run_id)
        rows, _ = context.stage(nodes, f"written-{depth}")
        if not has_failures(context.journal):
            return f"written-{depth}"
        context.stage(keep_previous(rows, context.memory), f"kept-{depth}")
        return f"kept-{depth}"


def _children(
    context: RunContext, candidates: DataFrame, written: DataFrame | None, *, depth: int
) -> DataFrame:
    """Return the level's memories as they will be: the stored ones with this run's over them."""
    key = ["tenant_id", "node_id"]
    stored = context.memory.where(F.col("depth") == depth)
    columns = [name for name in WRITTEN.names if name != "failed_tasks"]
    replaced = candidates.where((F.col("depth") == depth) & ~F.col("is_alive")).select(*key)
    if written is None:
        return stored.join(replaced, key, "left_anti").select(*columns)
    fresh = written.where(F.col("depth") == depth)
    replaced = replaced.unionByName(fresh.select(*key))
    kept = stored.join(replaced, key, "left_anti").select(*columns)
    return kept.unionByName(fresh.select(*columns))
