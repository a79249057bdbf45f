"""Answers to the requests of many inputs: from the ledger, or from the model for the open ones."""

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.records import NodeInput
from hltm_spark.models.requests import WAVES, NodePrompts
from hltm_spark.pipeline.batch_run import answer_frame, is_batched
from hltm_spark.pipeline.calls import call_model, find_answers, nth_requests, open_requests
from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.memory import answered_summary
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.progress import counting
from hltm_spark.pipeline.requests import PART
from hltm_spark.pipeline.tables import LLM_CALLS, TEXT, struct

SUMMARY_REQUESTS = struct(
    {**dict.fromkeys(PART, TEXT), "task": TEXT, "request_hash": TEXT, "summary": TEXT}
)


def answer_inputs(
    context: RunContext, inputs: DataFrame, *, level: str, nodes: int, name: str
) -> DataFrame:
    """Return every answer that the requests of some inputs have now.

    Args:
        context: The run.
        inputs: `INPUTS` rows of one level, staged.
        level: Its name in conf.
        nodes: How many.
        name: Of this step, for its staged frames.

    Returns:
        The columns of `PART`, task, response.
    """
    waves = WAVES[context.prompts.layout]
    with context.run.timed("calls"):
        first = first_requests(inputs)
        answered, cached = _answer_wave(
            context, inputs, first, count=nodes * len(waves[0]), name=f"open-{name}-0"
        )
        context.run.count(level, cached=cached)
        if len(waves) == 1:
            return answered
        second, count = context.stage(
            second_requests(inputs, answered, context.prompts), f"requests-{name}-1"
        )
        later, cached = _answer_wave(context, inputs, second, count=count, name=f"open-{name}-1")
        context.run.count(level, cached=cached)
        return answered.unionByName(later)


def first_requests(inputs: DataFrame) -> DataFrame:
    """Return one row per request of the first wave: `PART`, task, request_hash."""
    return inputs.select(*PART, F.explode("requests").alias("r")).select(
        *PART,
        "r.task",
        "r.request_hash",
        F.lit(None).cast("string").alias("summary"),
    )


def second_requests(inputs: DataFrame, answered: DataFrame, prompts: NodePrompts) -> DataFrame:
    """Return the requests that need the detailed summary, for nodes that have one.

    Args:
        inputs: `INPUTS` rows.
        answered: Columns of `PART`, task, response of the first wave.
        prompts: To render and hash the requests.
    """
    summaries = answered.where("task = 'summary'").select(*PART, "response")
    rows = inputs.select(*PART, "payload").join(summaries, PART)

    def requests(given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in given:
            payload = json.loads(row["payload"])
            node = NodeInput.from_dict(payload)
            summary = answered_summary(node, row["response"], prompts)
            for task in WAVES[prompts.layout][1]:
                request = prompts.request(
                    node, task, summary=summary, is_group=bool(payload.get("group"))
                )
                yield {
                    **{name: row[name] for name in PART},
                    "task": task,
                    "request_hash": prompts.request_hash(request, tenant_id=node.tenant_id),
                    "summary": summary,
                }

    return map_rows(rows, requests, SUMMARY_REQUESTS)


def _answer_wave(
    context: RunContext, inputs: DataFrame, requests: DataFrame, *, count: int, name: str
) -> tuple[DataFrame, int]:
    """Answer what the ledger cannot; return all answers from the ledger, and how many it had."""
    payloads = inputs.select(*PART, "level", "payload").withColumn(
        "tenant_key", salted_key("tenant_id", context.root)
    )
    waiting, open_count = context.stage(
        open_requests(requests.join(payloads, PART), context.ledger), name
    )
    if open_count:
        _call(context, waiting, count=open_count)
    answers = find_answers(requests, context.ledger).select(*PART, "task", "response")
    return answers, max(0, count - open_count)


def _call(context: RunContext, waiting: DataFrame, *, count: int) -> None:
    """Call the model for the open requests; the answers are in the ledger when this returns.

    Raises:
        LlmStopError: The model refuses every further request.
        BudgetReachedError: The run's budget is used up.
    """
    meter = context.meter
    before = meter.answered()
    with counting("calls", total=count, count=lambda: meter.answered() - before):
        for part in meter.portions(count):
            rows = waiting if len(part) == count else nth_requests(waiting, part)
            if is_batched(context):
                answer_frame(context, rows)
                continue
            slots = context.call_slots(len(part))
            call = context.call_settings(slots=slots)
            with meter.watching():
                context.commits.append(LLM_CALLS, call_model(rows, call, slots=slots))
    context.raise_if_stopped()
