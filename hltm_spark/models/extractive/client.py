"""The offline provider: answers by rules and counts, from the inputs' own words."""

import json
import time
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import LlmError
from hltm_spark.core.prompts import OUTPUTS
from hltm_spark.core.records import NodeInput
from hltm_spark.models.extractive.leaf import LeafWriter
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.parent import ParentWriter
from hltm_spark.models.extractive.query import answer_query, read_facets
from hltm_spark.models.llm import REFUSED, Completion, Request


class ExtractiveClient:
    """A deterministic client that needs no key; it is no language model and says so.

    It reads a request's task, output and payload, never the rendered prompt: text in a document
    is data for it by construction. The same payload gives the same bytes on every machine.
    """

    def __init__(self, settings: Settings) -> None:
        """Keep what decides the views: levels, declared facets, hints, limits."""
        self._settings = settings
        self._names = FacetNames(settings)

    @property
    def model(self) -> str:
        """Name in the ledger."""
        return "extractive"

    def complete(self, request: Request) -> Completion:
        """Answer one request.

        Raises:
            LlmError: `refused`: a task that rules cannot do, such as repairing an answer.
        """
        began = time.perf_counter()
        fields = self._fields(request)
        text = json.dumps({key: fields[key] for key in OUTPUTS[request.output]}, ensure_ascii=False)
        return Completion(
            text=text,
            finish_reason="stop",
            prompt_tokens=0,
            completion_tokens=0,
            latency_s=time.perf_counter() - began,
        )

    def close(self) -> None:
        """Release nothing."""

    def _fields(self, request: Request) -> dict[str, Any]:
        kind = request.task.partition("/")[0]
        if kind in {"leaf", "parent"}:
            return self._views(request)
        if request.task == "query/facets":
            query = str(request.payload.get("query", ""))
            return {"facets": read_facets(query, self._names)}
        if request.task == "query/answer":
            return answer_query(request.payload, self._names, self._settings.level_names)
        raise LlmError(f"{REFUSED}: the extractive provider has no rules for task {request.task!r}")

    def _views(self, request: Request) -> dict[str, Any]:
        node = NodeInput.from_dict(request.payload)
        writer: LeafWriter | ParentWriter
        if node.is_leaf:
            writer = LeafWriter(node, self._settings, self._names)
        else:
            is_group = bool(request.payload.get("group"))
            writer = ParentWriter(node, self._settings, self._names, is_group=is_group)
        return {key: getattr(writer, key)() for key in OUTPUTS[request.output]}
