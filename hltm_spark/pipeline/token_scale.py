"""How the token estimate compares with what the provider reported, from answers on record."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql import functions as F

from hltm_spark.core.records import NodeInput
from hltm_spark.models.answering import EXTRACTIVE
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.answers import first_requests
from hltm_spark.pipeline.items import NODE_ID, child_items, document_items
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.plan_context import PlanContext
from hltm_spark.pipeline.predict import prompt_tokens
from hltm_spark.pipeline.requests import FOLDED, IDENTITY, INPUTS, PART, fold_items
from hltm_spark.pipeline.tables import (
    LONG,
    TEXT,
    struct,
)

MIN_HISTORY = 20
"""Answers on record from which the token estimate is scaled."""

_OVERESTIMATE = 1.35  # `estimate_tokens` over true tokens, of English prompts
_TOKENS = struct({"level": TEXT, "task": TEXT, "estimated": LONG, "reported": LONG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How reported tokens compare with estimated ones.

    Attributes:
        by_prompt: (answers, estimated, reported) by (level, prompt id).
    """

    by_prompt: Mapping[tuple[str, str], tuple[int, int, int]]

    @property
    def history(self) -> int:
        """The answers that count, 0 where they are too few."""
        count = sum(answers for answers, _, _ in self.by_prompt.values())
        return count if count >= MIN_HISTORY else 0

    def factor(self, level: str, prompt_id: str) -> float:
        """Return what to multiply an estimate by: from this level, or else from any prompt."""
        if not self.history:
            return 1.0 / _OVERESTIMATE
        same = [numbers for key, numbers in self.by_prompt.items() if key[1] == prompt_id]
        level_and_prompt = self.by_prompt.get((level, prompt_id))
        chosen = [level_and_prompt] if level_and_prompt else same or self.by_prompt.values()
        return sum(reported for _, _, reported in chosen) / sum(e for _, e, _ in chosen)


def read_scale(context: PlanContext) -> Scale:
    """Compare reported with estimated tokens.

    The ledger has reported tokens without the prompt; a stored node's prompt can be rendered again
    where its documents and children are the same as then.
    """
    if context.prompts.model == EXTRACTIVE or "sample" not in context.latest:
        return Scale(by_prompt={})
    names, prompts = context.settings.level_names, context.prompts
    due = context.latest["sample"].where(F.col("depth") < len(names))
    due = due.select(*IDENTITY, F.lit(None).cast("string").alias("stored_fingerprint"))
    items = document_items(context.documents, due).unionByName(child_items(context.stored, due))
    ordered = items.repartition(context.slots, *NODE_ID).sortWithinPartitions(*NODE_ID, "place")
    folded, _ = context.stage(
        map_rows(ordered, lambda rows: _fold_levels(rows, prompts, names), FOLDED), "rendered"
    )
    inputs = folded.where("position IS NULL AND payload IS NOT NULL").select(*INPUTS.names)
    reported = context.paid.where("is_usable AND repair_of IS NULL AND prompt_tokens > 0").select(
        "tenant_id", "request_hash", F.col("prompt_tokens").alias("reported")
    )
    asked = first_requests(inputs).join(reported, ["tenant_id", "request_hash"])
    rows = asked.join(inputs.select(*PART, "payload"), PART).select("task", "payload", "reported")
    sums = (
        map_rows(rows, lambda given: estimated_tokens(given, prompts), _TOKENS)
        .groupBy("level", "task")
        .agg(F.count("*").alias("n"), F.sum("estimated").alias("e"), F.sum("reported").alias("r"))
    )
    return Scale(
        by_prompt={
            (row["level"], row["task"]): (row["n"], row["e"], row["r"]) for row in sums.collect()
        }
    )


def _fold_levels(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, names: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield what `fold_items` does, for nodes of several levels."""
    for (_, _, depth), group in groupby(rows, lambda r: (r["tenant_id"], r["node_id"], r["depth"])):
        yield from fold_items(group, prompts, level=names[depth])


def estimated_tokens(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield the estimated tokens of requests beside those that the provider reported."""
    for row in rows:
        node = NodeInput.from_dict(json.loads(row["payload"]))
        request = prompts.request(node, row["task"])
        yield {
            "level": node.level,
            "task": request.task,
            "estimated": prompt_tokens(request),
            "reported": row["reported"],
        }
