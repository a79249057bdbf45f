"""Small shards for tests, and an embedder that needs no model."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hltm_spark.core.conf_file import parse_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.records import fingerprint
from hltm_spark.core.shard import publish_version
from hltm_spark.core.shard_previous import PreviousVersion
from hltm_spark.core.shard_writer import ShardWriter
from hltm_spark.core.text import to_terms
from hltm_spark.core.tree import to_node_id
from hltm_spark.core.views import facet_text

DIMENSION = 64


class HashEmbedder:
    """Unit vectors of hashed terms: texts that share words are near, nothing else is."""

    model = f"wordllama:hash:{DIMENSION}"
    dimension = DIMENSION

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return shape (n, dimension); a text without a term has a row of zeros."""
        rows = np.zeros((len(texts), DIMENSION), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for term in to_terms(text):
                row[int(hashlib.sha256(term.encode()).hexdigest()[:8], 16) % DIMENSION] += 1.0
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        np.divide(rows, lengths, out=rows, where=lengths > 0)
        return rows

    def close(self) -> None:
        """Nothing to release."""


def shard_settings(**sections: Any) -> Settings:
    """Return settings whose embedding model is the hash embedder's, with the evidence view on."""
    raw: dict[str, Any] = {
        "levels": [{"name": n} for n in ("contract", "seat", "project")],
        "embedding": {"model": "hash", "dimension": DIMENSION},
        "views": {"evidence": {"enabled": True}},
        "retrieval": {"evidence": {"vector": 0.4}},
    }
    return parse_settings({**raw, **sections}, name="test.toml")


def shard_node(
    *keys: str,
    facets: Mapping[str, str] | None = None,
    questions: Mapping[str, str] | None = None,
    summary: str = "",
    documents: Mapping[str, str | Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return one node of a shard: facets by name, answers by question, documents by id.

    A document is its text, or the columns that a test is about.
    """
    return {
        "keys": keys,
        "facets": facets or {},
        "questions": questions or {},
        "summary": summary,
        "documents": documents or {},
    }


def write_shard(
    folder: Path,
    nodes: Iterable[Mapping[str, Any]],
    settings: Settings | None = None,
    *,
    previous: PreviousVersion | None = None,
) -> Path:
    """Write one tenant's version from nodes in tree order; return its folder.

    Nodes that a previous version has with the same content are taken over from it.
    """
    settings = settings or shard_settings()
    nodes = list(nodes)
    with ShardWriter(
        folder,
        tenant_id=nodes[0]["keys"][0] if nodes else "acme",
        embedding_model=settings.embedding.model_name,
        dimension=DIMENSION,
        settings=settings,
        previous=previous,
    ) as writer:
        known = previous.fingerprints if previous else {}
        for node in nodes:
            row = _node_row(node, settings)
            if known.get(to_node_id(node["keys"])) == row["fingerprint"]:
                writer.add_unchanged(tuple(node["keys"]), row)
            else:
                writer.add("node", tuple(node["keys"]), row, None)
                _add_items(writer, node)
        writer.close()
    return folder


def publish_shard(
    shards: Path, *nodes: Mapping[str, Any], version: str = "v1", settings: Settings | None = None
) -> None:
    """Write and publish one tenant's version."""
    staged = shards.parent / "staged" / f"{nodes[0]['keys'][0]}-{version}"
    write_shard(staged, nodes, settings)
    tenant_id = nodes[0]["keys"][0]
    publish_version(shards, tenant_id, staged, version=version, keep=3, provenance={})


def _node_row(node: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    return {
        "level": settings.level_names[len(node["keys"]) - 1],
        "status": "complete",
        "latest_at": "",
        "fingerprint": fingerprint(repr(node)),  # the order of items counts
    }


def _add_items(writer: ShardWriter, node: Mapping[str, Any]) -> None:
    keys = tuple(node["keys"])
    if node["summary"]:
        body = {"summary": f"In detail: {node['summary']}", "one_sentence_summary": node["summary"]}
        writer.add("summary", keys, body, _vector(node["summary"]))
    documents = list(node["documents"])
    for name, value in node["facets"].items():
        body = {
            "name": name,
            "value": value,
            "sources": documents,
            "documents": documents,
            "support": 1,
            "total": 1,
            "latest_at": "",
        }
        writer.add("facet", keys, body, _vector(facet_text(name, value)))
    for question, answer in node["questions"].items():
        body = {
            "question": question,
            "answer": answer,
            "sources": documents,
            "documents": documents,
        }
        writer.add("question", keys, body, _vector(question))
    for doc_id, given in node["documents"].items():
        columns = {"text": given} if isinstance(given, str) else dict(given)
        body = {"doc_id": doc_id, "kind": "note", "event_time": "", "author": "", **columns}
        writer.add("document", keys, body, _vector(body["text"]))


def _vector(text: str) -> bytes | None:
    vector = HashEmbedder().embed([text])[0]
    return vector.astype("<f4").tobytes() if vector.any() else None
