"""Batches for the tests of this folder, on a server of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.models import retrying
from hltm_spark.pipeline import batches as module
from tests.batch_server import serve_batches
from tests.unit.pipeline.batch_rig import KEY, Rig


@pytest.fixture
def quick_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Return a factory of rigs; options of the server and of the rig."""
    opened = []

    def make(
        *, count: int = 5, text: str = "Location: Turku", llm: Any = None, **served: Any
    ) -> Rig:
        context = serve_batches(**served)
        opened.append(context)
        return Rig(tmp_path, context.__enter__(), llm=llm or {}, count=count, text=text)

    yield make
    for context in opened:
        context.__exit__(None, None, None)
