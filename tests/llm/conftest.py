"""One model server for all tests, and a key that it takes."""

from collections.abc import Iterator

import pytest

from tests.llm.llama_server import KEY, LlamaServer, serve_llama


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with serve_llama(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture
def llama(running: LlamaServer, monkeypatch: pytest.MonkeyPatch) -> LlamaServer:
    """Return the server, with nothing on record."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    running.forget()
    return running
