"""A key and short waits for clients, and a server that answers."""

from collections.abc import Iterator

import pytest

from hltm_spark.models import retrying
from tests.llm_server import LlmServer, serve_llm
from tests.unit.models.openai_calls import KEY


@pytest.fixture
def key_and_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with serve_llm() as running:
        yield running
