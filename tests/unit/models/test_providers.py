import pytest

from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.core.errors import EnvironmentProblem
from hltm_spark.models.embedders import WordLlamaEmbedder
from hltm_spark.models.openai_client import OpenAiClient
from hltm_spark.models.openai_embedder import OpenAiEmbedder
from hltm_spark.models.prices import cost
from hltm_spark.models.providers import make_embedder, make_llm
from tests.builders import settings


def test_the_client_is_the_one_that_conf_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")

    offline = make_llm(settings())
    online = make_llm(settings(llm={"provider": "openai", "model": "gpt-test"}))

    assert offline.model == "extractive"
    assert isinstance(online, OpenAiClient)
    assert online.model == "gpt-test"
    online.close()


def test_the_embedder_is_the_one_that_conf_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")

    online = make_embedder(EmbeddingSettings(provider="openai", model="m", dimension=8))

    assert isinstance(make_embedder(EmbeddingSettings()), WordLlamaEmbedder)
    assert isinstance(online, OpenAiEmbedder)
    assert (online.model, online.dimension) == ("openai:m:8", 8)
    online.close()


def test_a_missing_key_is_said_when_the_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(EnvironmentProblem, match="OPENAI_API_KEY"):
        make_llm(settings(llm={"provider": "openai", "model": "gpt-test"}))


def test_cost_is_counted_by_the_price_of_the_model() -> None:
    priced = settings(
        llm={"provider": "openai", "model": "m"}, prices={"m": {"prompt": 2.0, "completion": 8.0}}
    )

    assert cost(priced, 1_000_000, 500_000) == 6.0
    assert cost(settings(), 1_000_000, 500_000) == 0.0
