import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hltm_spark.core.text import to_terms
from serving import MemoryReader
from serving.evidence import evidence_signals, neighbour_weights, spread
from tests.shards import HashEmbedder, publish_shard, shard_node, shard_settings

TALK = {
    "d1": {"text": "Did you finish the kiln?", "author": "Ada"},
    "d2": {"text": "Yes, on Monday.", "author": "Ben"},
    "d3": {"text": "The weather was cold.", "author": "Ada"},
    "d4": {"text": "We went skating.", "author": "Ben"},
    "d5": {"text": "Lunch is at noon.", "author": "Ada"},
}
OTHER = {
    "e1": {"text": "Painting a kiln shelf.", "author": "Eve"},
    "e2": {"text": "Skating again."},
}


def talk(**other: Any) -> list[dict[str, Any]]:
    return [
        shard_node("ada"),
        shard_node("ada", "s1", documents=TALK),
        shard_node("ada", "s2", documents={**OTHER, **other}),
    ]


def reader(shards: Path, **evidence: Any) -> MemoryReader:
    settings = shard_settings(
        views={"evidence": {"enabled": True, **evidence}}, retrieval={"k_evidence": 20}
    )
    return MemoryReader.open(shards, settings=settings, embedder=HashEmbedder())


def found(memory: MemoryReader, scope: str, query: str) -> list[str]:
    context = memory.scope(scope).retrieve(query, facets=[("a", "b")])
    return [hit.documents[0] for hit in context.evidence]


def raw_lexical(memory: MemoryReader, scope: str, query: str) -> dict[str, float]:
    shard, span = memory.scope(scope)._bind()
    view = shard.view("evidence")
    low, high = view.rows_of(*span)
    vector = HashEmbedder().embed([query])[0]
    window = memory._settings.views.evidence.context_window
    scores = evidence_signals(shard, (low, high), query, vector, window=window)["lexical"]
    ids = view.table.column("doc_id").to_pylist()[low:high]
    return dict(zip(ids, scores.tolist(), strict=True))


def plain_bm25(documents: dict[str, dict[str, str]], query: str, window: int) -> dict[str, float]:
    """BM25 with decayed neighbours by plain loops, standardised; all documents of one node."""
    counts = [to_terms(f"{d.get('author', '')} {d['text']}") for d in documents.values()]

    def near(place: int, value: Any) -> float:
        reach = range(max(0, place - window), min(len(counts), place + window + 1))
        return float(sum(0.5 ** abs(i - place) * value(counts[i]) for i in reach))

    lengths = [near(i, len) for i in range(len(counts))]
    mean = sum(lengths) / len(lengths)
    scores = np.zeros(len(counts))
    for term in dict.fromkeys(to_terms(query)):
        weights = [near(i, lambda terms, t=term: terms.count(t)) for i in range(len(counts))]
        having = sum(w > 0 for w in weights)
        idf = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
        for i, weight in enumerate(weights):
            norm = 1.2 * (0.25 + 0.75 * lengths[i] / mean)
            scores[i] += idf * weight * 2.2 / (weight + norm)
    return dict(zip(documents, ((scores - scores.mean()) / scores.std()).tolist(), strict=True))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    publish_shard(tmp_path / "shards", *talk())
    return tmp_path / "shards"


@pytest.mark.parametrize("window", [0, 1, 3, 10])
def test_lexical_scores_equal_a_plain_loop(shards: Path, window: int) -> None:
    query = "kiln skating monday weather"

    got = raw_lexical(reader(shards, context_window=window), "ada/s1", query)

    expected = plain_bm25(TALK, query, window)
    assert got.keys() == expected.keys()
    np.testing.assert_allclose(list(got.values()), list(expected.values()), atol=1e-4)


def test_a_reply_is_found_by_the_words_of_its_question(shards: Path) -> None:
    assert found(reader(shards), "ada", "kiln finish")[:2] == ["d1", "d2"]
    assert found(reader(shards, context_window=0), "ada", "kiln finish")[1] == "e1"


def test_neighbours_end_at_the_node() -> None:
    owner = np.array([0, 0, 1, 1])
    values = np.array([0, 4, 0, 0], np.float32)

    spread_values = spread(values, neighbour_weights(owner, window=3))

    assert spread_values.tolist() == [2, 4, 0, 0]


def test_a_sibling_changes_no_ranking(tmp_path: Path) -> None:
    publish_shard(tmp_path / "a", *talk())
    publish_shard(tmp_path / "b", *talk(e3={"text": "kiln " * 50, "author": "Ada"}), version="v2")
    query = "Did Ada finish the kiln on Monday?"

    one, other = (
        reader(tmp_path / name).scope("ada/s1").retrieve(query, facets=[("a", "b")])
        for name in ("a", "b")
    )

    assert [(h.documents, h.score) for h in one.evidence] == [
        (h.documents, h.score) for h in other.evidence
    ]


def test_a_query_that_names_the_author_prefers_their_documents(shards: Path) -> None:
    first_two = found(reader(shards), "ada/s1", "What does Ben say?")[:2]

    assert set(first_two) == {"d2", "d4"}


def test_a_day_is_found_in_words(tmp_path: Path) -> None:
    dated = {
        "d1": {"text": "Alpha."},
        "d2": {"text": "Beta.", "event_time": "2023-05-08T13:56:00Z"},
    }
    publish_shard(tmp_path / "shards", shard_node("ada"), shard_node("ada", "s1", documents=dated))
    memory = reader(tmp_path / "shards", context_window=0)

    for query in ("What happened on 8 May 2023?", "on that Monday"):
        scores = raw_lexical(memory, "ada", query)
        assert scores["d2"] > scores["d1"]


def test_scripts_without_spaces_are_found(tmp_path: Path) -> None:
    texts = {"d1": {"text": "東京の天気は晴れです"}, "d2": {"text": "大阪で会議がある"}}
    publish_shard(tmp_path / "shards", shard_node("ada"), shard_node("ada", "s1", documents=texts))

    assert found(reader(tmp_path / "shards", context_window=0), "ada", "大阪の会議")[0] == "d2"


def test_one_document_and_no_match_are_no_fault(tmp_path: Path) -> None:
    publish_shard(tmp_path / "shards", shard_node("ada", documents={"d1": "Alpha."}))

    assert found(reader(tmp_path / "shards"), "ada", "nothing of the kind") == ["d1"]
