"""The call stage alone: how near it comes to what the endpoint allows, and what it costs here.

The ideal is calls x latency / calls at once: everything above it is start-up, the client's own work
and the end of the stage, where fewer calls are left than may be in flight.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.answering import Faults, Served, serve_answers
from benchmarks.hiring import make_documents
from benchmarks.measured import CONF, VoidMeasurementError
from benchmarks.resident import worker_cpu_s
from hltm_spark.core.conf_file import load_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.records import Document, NodeInput
from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.calls import OPEN_REQUEST, CallSettings, call_model
from hltm_spark.pipeline.files import row_count, write_rows
from hltm_spark.pipeline.requests import payload_of
from hltm_spark.pipeline.session import task_slots

LEVEL, TASK = "project", "fused"
_WARM_UP_CALLS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one call stage took.

    Attributes:
        seconds: Of the stage, its rows on disk.
        cpu_s: Processor time of the Python workers.
        answers: Rows of the ledger.
        failures: Requests without a usable answer.
        served: What the model's server counted.
    """

    seconds: float
    cpu_s: float
    answers: int
    failures: int
    served: Served


def measure_calls(
    spark: SparkSession, count: int, *, at_once: int, latency_s: float, faults: Faults
) -> Stage:
    """Call the model so often by Spark, as a run with many nodes does, and return what it took."""
    with (
        tempfile.TemporaryDirectory(prefix="hltm-bench-") as folder,
        serve_answers(latency_s, faults) as server,
    ):
        overrides = [
            "llm.provider=openai",
            "llm.model=scripted",
            f"llm.base_url={server.base_url}",
            f"llm.max_concurrency={at_once}",
        ]
        settings, scratch = load_settings(CONF, overrides=overrides), Path(folder)
        _stage(spark, settings, scratch / "warm-up", _WARM_UP_CALLS)
        server.take()
        before = worker_cpu_s()
        seconds = _stage(spark, settings, scratch / "measured", count)
        cpu_s = worker_cpu_s() - before
        answers = row_count(str(scratch / "measured" / "answers"))
        failures = len(list((scratch / "measured" / "journal").glob("*.failure")))
        if answers < count - failures:
            raise VoidMeasurementError(f"{count} calls, but {answers} answers")
        return Stage(
            seconds=seconds, cpu_s=cpu_s, answers=answers, failures=failures, served=server.take()
        )


def _stage(spark: SparkSession, settings: Settings, folder: Path, count: int) -> float:
    """Return the seconds of one call stage over so many open requests."""
    prompts, slots = NodePrompts.load(settings), task_slots(spark)
    waiting = str(folder / "waiting")
    write_rows(_open_requests(prompts, count), OPEN_REQUEST, waiting)
    call = CallSettings(
        settings=settings,
        prompts=prompts,
        journal=str(folder / "journal"),
        stage="bench",
        workers=slots,
        run_id="bench",
        make_client=make_llm,
    )
    began = time.perf_counter()
    rows = spark.read.schema(OPEN_REQUEST).parquet(waiting)
    call_model(rows, call, slots=slots).write.parquet(str(folder / "answers"))
    return time.perf_counter() - began


def _open_requests(prompts: NodePrompts, count: int) -> Iterator[Mapping[str, Any]]:
    for document in make_documents(count).values():
        item = Document(doc_id=document.doc_id, text=document.text, kind="intake_call")
        tenant_id, node_id = document.keys[0], "/".join(document.keys)
        node = NodeInput(tenant_id=tenant_id, node_id=node_id, level=LEVEL, documents=(item,))
        request = prompts.request(node, TASK)
        yield {
            "tenant_id": tenant_id,
            "tenant_key": tenant_id,
            "node_id": node_id,
            "level": LEVEL,
            "task": TASK,
            "request_hash": prompts.request_hash(request, tenant_id=tenant_id),
            "summary": None,
            "payload": payload_of(node, is_group=False),
        }
