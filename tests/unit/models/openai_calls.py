"""A client of the scripted server, and what one request to it gives."""

from typing import Any

import pytest

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import LlmError, LlmStopError
from hltm_spark.models.llm import Completion, Request
from hltm_spark.models.openai_client import OpenAiClient
from tests import llm_server as replies
from tests.llm_server import LlmServer, Reply, serve_llm

SECRET = "the applicant's secret"
KEY = "sk-test-key"

REQUEST = Request(
    task="leaf/facets",
    output="facets",
    system='Answer with JSON: {"facets": {}}',
    user=f'<document id="d1">\ncity: Oulu\n{SECRET}\n</document>',
)


def client(server: LlmServer, **settings: Any) -> OpenAiClient:
    given = {"provider": "openai", "model": "gpt-test", "base_url": server.base_url}
    return OpenAiClient(LlmSettings(**given | settings))


def complete(script: replies.Script, **settings: Any) -> tuple[Completion, LlmServer]:
    with serve_llm(script) as server:
        asked = client(server, **settings)
        try:
            return asked.complete(REQUEST), server
        finally:
            asked.close()


def failure(script: replies.Script, **settings: Any) -> tuple[Exception, LlmServer]:
    with serve_llm(script) as server:
        asked = client(server, **settings)
        with pytest.raises((LlmError, LlmStopError)) as raised:
            asked.complete(REQUEST)
        asked.close()
    message = str(raised.value)
    assert SECRET not in message
    assert KEY not in message
    assert "127.0.0.1" not in message
    return raised.value, server


def always(reply: Reply) -> replies.Script:
    return lambda _: reply
