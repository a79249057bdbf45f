from typing import Any

import numpy as np
import pytest

from benchmarks.baselines import Bm25, baselines, fuse, ranking
from benchmarks.retrieval import Outcome, lines_of, read_conversation, summarise
from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.evaluation.recall import evidence_ids, precision_at, recall_at
from hltm_spark.models.providers import make_embedder

KNOWN = {"D1:1", "D4:4", "D4:6", "D9:1", "D11:26", "D30:5"}


@pytest.mark.parametrize(
    ("evidence", "ids"),
    [
        (["D1:1", "D4:4"], ("D1:1", "D4:4")),
        (["D9:1 D4:4 D4:6"], ("D9:1", "D4:4", "D4:6")),
        (["D9:1; D4:4", "D4:4,D4:6"], ("D9:1", "D4:4", "D4:6")),
        (["D:11:26"], ("D11:26",)),
        (["D30:05"], ("D30:5",)),
        (["D1:1", "D", "D4:4"], ("D1:1", "D4:4")),
        (["D99:1", "D1:10"], ()),
        ("D1:1", ("D1:1",)),
        (["D1:1", "D1:1"], ("D1:1",)),
        ([], ()),
        ("", ()),
        (None, ()),
        ([None, 7], ()),
    ],
)
def test_evidence_is_read_as_it_is_meant(evidence: object, ids: tuple[str, ...]) -> None:
    assert evidence_ids(evidence, KNOWN) == ids


def test_recall_counts_evidence_and_precision_counts_places() -> None:
    ranked = ["a", "b", "c"]

    assert recall_at(ranked, ("c", "x"), 2) == 0
    assert recall_at(ranked, ("c", "x"), 3) == 0.5
    assert precision_at(ranked, ("a", "c"), 2) == 0.5
    assert precision_at(ranked, ("a", "c"), 10) == 0.2


def test_bm25_prefers_the_rarer_word_and_the_shorter_text() -> None:
    bm25 = Bm25(["the cat", "the dog", "the dog and the other one", "a bird"])

    assert ranking(bm25.scores("The DOG!")) == [1, 2, 0]
    assert ranking(bm25.scores("unknown")) == []


def test_bm25_score_is_the_formula() -> None:
    bm25 = Bm25(["cat", "dog dog"])

    idf = np.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    norm = 1.5 * (1 - 0.75 + 0.75 * 2 / 1.5)
    np.testing.assert_allclose(bm25.scores("dog"), [0, idf * 2 * 2.5 / (2 + norm)])


def test_equal_scores_keep_the_order_of_rows() -> None:
    assert ranking(np.array([1.0, 2.0, 1.0, 0.0, 2.0])) == [1, 4, 0, 2]


def test_fusion_adds_reciprocal_ranks_and_leaves_the_unranked_at_nothing() -> None:
    scores = fuse([[2, 0], [0]], 4)

    np.testing.assert_allclose(scores, [1 / 62 + 1 / 61, 0, 1 / 61, 0])


def test_every_baseline_ranks_the_text_that_shares_the_words_first() -> None:
    embedder = make_embedder(EmbeddingSettings())

    systems = baselines(["x", "y"], ["Ann: my dog barks", "Bob: tax forms"], embedder)

    found = {name: list(rank("dog")) for name, rank in systems.items()}
    assert found == {"bm25": ["x"], "vector": ["x", "y"], "bm25+vector": ["x", "y"]}


def test_only_questions_with_a_turn_as_evidence_are_asked() -> None:
    sample = {
        "sample_id": "conv-1",
        "conversation": {
            "session_1": [{"speaker": "Ann", "dia_id": "D1:1", "text": "I have a dog."}],
            "session_1_date_time": "1:56 pm on 8 May, 2023",
        },
        "qa": [
            {"question": "What pet?", "category": 4, "evidence": ["D1:01"], "answer": "dog"},
            {"question": "What car?", "category": 5, "evidence": []},
            {"question": "What boat?", "category": 1, "evidence": ["D2:9"]},
        ],
    }

    conversation = read_conversation(sample)

    assert conversation.texts == ("Ann: I have a dog.",)
    assert [(q.text, q.evidence) for q in conversation.questions] == [("What pet?", ("D1:1",))]


def test_adversarial_questions_stay_out_of_the_mean() -> None:
    summary = summarise([outcome(1, 1.0), outcome(4, 0.5), outcome(5, 0.0)])

    assert summary["evidence_recall@10"] == 0.75
    assert summary["questions"] == 2
    assert summary["by_category"]["5"]["evidence_recall@10"] == 0
    assert summary["seconds_per_query"] == 0.5


def test_the_table_names_every_system_and_its_ratio_to_bm25() -> None:
    result: dict[str, Any] = {
        "systems": {
            "hltm": summarise([outcome(1, 0.9)]),
            "bm25": summarise([outcome(1, 0.6)]),
        },
        "questions": 1,
        "questions_by_category": {"1": 1},
        "conversations": 1,
        "turns": 9,
        "index": None,
    }

    text = "\n".join(lines_of(result))

    assert "1.50" in text
    assert "multi-hop (1)" in text
    assert "built before" in text


def outcome(category: int, recall: float) -> Outcome:
    values = {f"evidence_recall@{k}": recall for k in (5, 10, 20)}
    return Outcome(category=category, values={**values, "precision@10": 0.1}, seconds=0.5)
