"""Asks the extractive client as the pipeline and the reader do: one request, judged by parsing."""

import json
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.records import NodeInput
from hltm_spark.models.extractive import ExtractiveClient
from hltm_spark.models.llm import Request
from hltm_spark.models.parsing import parse_answer
from tests.builders import settings as make_settings

FACETS: list[dict[str, Any]] = [
    {"name": "title", "aliases": ["Role"]},
    {"name": "location", "aliases": ["Office", "勤務地"]},
    {"name": "work mode", "aliases": ["Workplace"]},
    {"name": "must-have skills", "aliases": ["Stack"], "multiple": True, "split": True},
    {
        "name": "visa sponsorship",
        "aliases": ["Sponsorship", "Visa", "Visas", "Sponsor"],
        "positive": ["yes", "offered", "sponsor"],
        "negative": ["no", "not", "no longer", "never"],
    },
    {"name": "rejected because", "multiple": True},
]


def hiring(**sections: Any) -> Settings:
    """Return hiring settings with a few declared facets."""
    return make_settings(**{"facets": FACETS, **sections})


def raw_text(task: str, output: str, payload: dict[str, Any], settings: Settings) -> str:
    """Return what the client answers, unparsed."""
    request = Request(task=task, output=output, system="", user="", payload=payload)
    return ExtractiveClient(settings).complete(request).text


def write(node: NodeInput, settings: Settings | None = None) -> dict[str, Any]:
    """Return the validated fields of a node, from the fused task; nothing may be dropped."""
    chosen = settings or hiring()
    task = f"{'leaf' if node.is_leaf else 'parent'}/fused"
    text = raw_text(task, "fused", node.to_dict(), chosen)
    parsed = parse_answer(text, "stop", output="fused", source_ids=node.source_ids)
    assert parsed.dropped == {}
    assert json.loads(text).keys() == parsed.fields.keys()
    return parsed.fields


def ask(
    query: str, context: list[dict[str, Any]], settings: Settings | None = None
) -> dict[str, Any]:
    """Return rationale, answer and citation for a question and its context."""
    payload = {"query": query, "context": context}
    text = raw_text("query/answer", "answer", payload, settings or hiring())
    ids = [hit["node_id"] for hit in context]
    return parse_answer(text, "stop", output="answer", source_ids=ids).fields


def values(fields: dict[str, Any], name: str) -> list[str]:
    """Return the values of one facet, in order."""
    return [facet["value"] for facet in fields["facets"] if facet["name"] == name]


def answers(fields: dict[str, Any]) -> dict[str, str]:
    """Return answers by question."""
    return {pair["question"]: pair["answer"] for pair in fields["question_answers"]}
