import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.core.errors import EmbeddingError, EnvironmentProblem, LlmStopError
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models import retrying
from hltm_spark.models.openai_embedder import OpenAiEmbedder
from tests import llm_server as replies
from tests.llm_server import Call, LlmServer, Reply, hashed_vector, serve_llm

DIMENSION = 16


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key")
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)


def embedder(server: LlmServer, **settings: Any) -> OpenAiEmbedder:
    given: dict[str, Any] = {"provider": "openai", "model": "embed-test", "dimension": DIMENSION}
    return OpenAiEmbedder(EmbeddingSettings(**given | {"base_url": server.base_url} | settings))


def embed(
    texts: list[str], script: replies.Script = (), **settings: Any
) -> tuple[np.ndarray[Any, Any], LlmServer]:
    with serve_llm(script, dimension=DIMENSION) as server:
        asked = embedder(server, **settings)
        try:
            return asked.embed(texts), server
        finally:
            asked.close()


def expected(texts: list[str]) -> np.ndarray[Any, Any]:
    return np.array([hashed_vector(t, dimension=DIMENSION) for t in texts], dtype=np.float32)


def inputs(server: LlmServer) -> list[list[str]]:
    return [call.body["input"] for call in server.embeddings]


def body_of(items: list[Any]) -> Reply:
    return replies.raw(json.dumps({"data": items}).encode())


def test_vectors_come_back_in_order_as_floats() -> None:
    texts = [f"text {i}" for i in range(10)]

    rows, server = embed(texts, max_batch_items=4)

    np.testing.assert_allclose(rows, expected(texts), rtol=1e-6)
    assert rows.dtype == np.float32
    assert [len(batch) for batch in inputs(server)] == [4, 4, 2]
    body = server.embeddings[0].body
    assert body.keys() == {"model", "input", "encoding_format", "dimensions"}
    assert body["encoding_format"] == "float"


def test_batches_are_bounded_by_tokens_too() -> None:
    texts = ["東" * 40] * 10

    _, server = embed(texts, max_batch_tokens=100)

    assert [len(batch) for batch in inputs(server)] == [2] * 5


def test_no_text_takes_no_call_and_a_blank_one_is_refused() -> None:
    rows, server = embed([])

    assert rows.shape == (0, DIMENSION)
    assert server.embeddings == []
    with pytest.raises(ValueError, match="1 of 2 texts are blank, the first at 1"):
        embed(["a", "\t"])


def test_results_are_matched_by_their_index() -> None:
    vectors = {"a": [1.0] + [0.0] * 15, "b": [0.0] * 15 + [2.0]}
    items = [{"index": 1, "embedding": vectors["b"]}, {"index": 0, "embedding": vectors["a"]}]

    rows, _ = embed(["a", "b"], [body_of(items)])

    assert rows[0, 0] == 1.0
    assert rows[1, 15] == 1.0


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([], "0 results with 0 distinct indexes for 1 texts"),
        ([{"index": 0, "embedding": [1.0] * 16}] * 2, "2 results with 1 distinct"),
        ([{"embedding": [1.0] * 16}], "for 1 texts"),
        ([{"index": 0, "embedding": "AACAPwAAAEA="}], "as str, wanted a list of numbers"),
        ([{"index": 0, "embedding": ["1"] * 16}], "wanted a list of numbers"),
        ([{"index": 0, "embedding": [1.0] * 4}], "is 16, the endpoint gave 4; set embedding.dim"),
        ([{"index": 0, "embedding": [0.0] * 16}], "all zeros or not finite"),
        ([{"index": 0, "embedding": [float("nan")] * 16}], "all zeros or not finite"),
        ([{"index": 0, "embedding": [float("inf")] * 16}], "all zeros or not finite"),
        ([{"index": 0}], "as NoneType"),
    ],
)
def test_a_vector_that_cannot_be_stored_is_an_error(items: list[Any], problem: str) -> None:
    with pytest.raises(EmbeddingError, match=problem):
        embed(["a"], [body_of(items)])


# ---- sizes


def limited(is_refused: Callable[[list[str]], bool], **error: Any) -> replies.Script:
    """Refuse requests by their inputs, as an endpoint with limits does."""

    def script(call: Call) -> Reply | None:
        if is_refused(call.body["input"]):
            return replies.error(400, **{"message": "input is too large"} | error)
        return None

    return script


def accepted(server: LlmServer) -> list[str]:
    return [text for call in server.embeddings if call.status == 200 for text in call.body["input"]]


def test_a_limit_of_items_is_learned() -> None:
    texts = [f"text {i}" for i in range(300)]

    rows, server = embed(texts, limited(lambda batch: len(batch) > 10))

    np.testing.assert_allclose(rows, expected(texts), rtol=1e-6)
    assert accepted(server) == texts
    assert sum(call.status == 400 for call in server.embeddings) <= 40
    assert server.embeddings[-1].status == 200


def test_a_limit_of_tokens_is_learned_and_a_text_over_it_is_cut() -> None:
    texts = ["長" * 200] * 20 + ["short"] * 50 + ["長" * 2000]

    def too_many(batch: list[str]) -> bool:
        return sum(map(len, batch)) > 1000

    rows, server = embed(texts, limited(too_many), max_batch_tokens=5000, max_text_tokens=5000)

    assert rows.shape == (71, DIMENSION)
    assert len(accepted(server)) == 71
    assert len(accepted(server)[-1]) == 1000


def test_a_text_over_the_limit_of_one_text_is_cut_before_it_is_sent() -> None:
    _, server = embed(["word " * 20_000, "漢" * 9000], max_text_tokens=8000)

    sent = inputs(server)
    assert all(7990 <= estimate_tokens(text) <= 8000 for batch in sent for text in batch)


def test_a_refusal_for_another_reason_is_not_repeated_for_ever() -> None:
    script = limited(lambda batch: "bad" in batch, message="no good: bad", code="strange")

    with serve_llm(script, dimension=DIMENSION) as server:
        asked = embedder(server)
        with pytest.raises(EmbeddingError, match=r"1 texts of 3 characters .*HTTP 400 \(strange\)"):
            asked.embed(["a", "b", "bad", "c"])
        asked.close()

    assert len(server.embeddings) <= 4


def test_a_model_that_cannot_choose_its_dimension_is_asked_once() -> None:
    def script(call: Call) -> Reply | None:
        if "dimensions" in call.body:
            return replies.error(400, message="This model does not support specifying dimensions.")
        return None

    rows, server = embed(["a", "b", "c"], script, max_batch_items=1)

    np.testing.assert_allclose(rows, expected(["a", "b", "c"]), rtol=1e-6)
    assert [call.status for call in server.embeddings] == [400, 200, 200, 200]


# ---- errors


def test_temporary_errors_are_tried_again() -> None:
    script = [replies.rate_limited(), replies.reset(), replies.raw(b"{}"), replies.raw(b"x"), None]

    rows, server = embed(["a"], script)

    np.testing.assert_allclose(rows, expected(["a"]), rtol=1e-6)
    assert len(server.embeddings) == 5


def test_lasting_temporary_errors_are_an_embedding_error() -> None:
    with pytest.raises(EmbeddingError, match="HTTP 503"):
        embed(["a"], lambda _: replies.server_error(503), max_attempts=2)
    with pytest.raises(EmbeddingError, match="not JSON"):
        embed(["a"], lambda _: replies.raw(b"x"), max_attempts=2)


@pytest.mark.parametrize(
    "reply", [replies.insufficient_quota(), replies.unauthorized(), replies.unknown_model()]
)
def test_a_permanent_error_stops_the_run(reply: Reply) -> None:
    with serve_llm(lambda _: reply) as server:
        asked = embedder(server)
        with pytest.raises(LlmStopError, match=r"embedding\.model 'embed-test'"):
            asked.embed(["a", "b"])
        asked.close()

    assert len(server.embeddings) == 1


def test_a_missing_key_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")

    with pytest.raises(EnvironmentProblem, match=r"OPENAI_API_KEY \(embedding\.api_key_env\)"):
        OpenAiEmbedder(EmbeddingSettings(provider="openai", model="m"))
