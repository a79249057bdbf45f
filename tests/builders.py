"""One builder for each kind of row: it fills in every column, a test names those it is about."""

from typing import Any

from hltm_spark.core.conf_file import parse_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.records import Child, Document, FacetValue, NodeInput, QuestionAnswer, Views


def settings(*level_names: str, **sections: Any) -> Settings:
    """Return settings with these levels (contract, seat, project unless given)."""
    names = level_names or ("contract", "seat", "project")
    return parse_settings({"levels": [{"name": n} for n in names], **sections}, name="test.toml")


def document(doc_id: str = "d1", **fields: Any) -> Document:
    """Return a document as a node's input."""
    return Document(**{"doc_id": doc_id, "text": f"text of {doc_id}", **fields})


def facet(name: str, value: str, **fields: Any) -> FacetValue:
    """Return one facet value."""
    return FacetValue(name=name, value=value, **fields)


def pair(question: str, answer: str = "yes", **fields: Any) -> QuestionAnswer:
    """Return one question-answer pair."""
    return QuestionAnswer(question=question, answer=answer, **fields)


def child(node_id: str, *, latest_at: str = "", **views: Any) -> Child:
    """Return a child as its parent's input; it has a summary unless told."""
    return Child(
        node_id=node_id,
        latest_at=latest_at,
        views=Views(**{"summary": f"summary of {node_id}", **views}),
    )


def node(*inputs: Document | Child, **fields: Any) -> NodeInput:
    """Return a node's input from documents and children."""
    return NodeInput(
        **{
            "tenant_id": "acme",
            "node_id": "acme/s1",
            "level": "seat",
            "documents": tuple(i for i in inputs if isinstance(i, Document)),
            "children": tuple(i for i in inputs if isinstance(i, Child)),
            **fields,
        }
    )


def raw_document(doc_id: str = "d1", **fields: Any) -> dict[str, Any]:
    """Return a document as users give it: acme / s1 / p1 unless told."""
    row = {"contract": "acme", "seat": "s1", "project": "p1", "doc_id": doc_id}
    return {**row, "text": f"Title: role of {doc_id}", **fields}
