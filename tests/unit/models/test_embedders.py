import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.core.errors import MissingExtraError, SettingsError
from hltm_spark.models.embedders import Embedder, WordLlamaEmbedder, unit_rows

TEXTS = ["location: Oulu", "Where is the office?", "Ein Büro in Oulu", "東京で募集", "😀", "x"]


@pytest.fixture(scope="module")
def wordllama() -> Embedder:
    return WordLlamaEmbedder(EmbeddingSettings())


def test_rows_have_length_one_and_zeros_stay_zeros() -> None:
    given = np.array([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0], [1e30, 1e30]])

    rows = unit_rows(given)

    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows[0], [0.6, 0.8], rtol=1e-6)
    assert not rows[1].any()
    np.testing.assert_allclose(np.linalg.norm(rows[3]), 1.0, rtol=1e-6)
    assert given[0, 0] == 3.0


def test_wordllama_gives_unit_vectors_by_meaning(wordllama: Embedder) -> None:
    rows = wordllama.embed([*TEXTS, "office location: Oulu"])

    assert rows.shape == (7, 256)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
    assert rows[0] @ rows[6] > rows[0] @ rows[3]
    assert (wordllama.model, wordllama.dimension) == ("wordllama:l2_supercat:256", 256)


def test_a_vector_depends_on_its_text_alone(wordllama: Embedder) -> None:
    together = wordllama.embed([*TEXTS, "word " * 3000])

    alone = np.concatenate([wordllama.embed([text]) for text in TEXTS])

    np.testing.assert_array_equal(together[: len(TEXTS)], alone)
    np.testing.assert_array_equal(WordLlamaEmbedder(EmbeddingSettings()).embed(TEXTS), alone)


def test_no_text_gives_no_row(wordllama: Embedder) -> None:
    assert wordllama.embed([]).shape == (0, 256)


def test_a_blank_text_is_refused_by_its_place(wordllama: Embedder) -> None:
    with pytest.raises(ValueError, match="1 of 3 texts are blank, the first at 1"):
        wordllama.embed(["a", " \n", "b"])


@pytest.mark.parametrize("dimension", [64, 128])
def test_wordllama_vectors_can_be_cut(wordllama: Embedder, dimension: int) -> None:
    short = WordLlamaEmbedder(EmbeddingSettings(dimension=dimension))

    rows = short.embed(TEXTS)

    np.testing.assert_allclose(
        rows, unit_rows(wordllama.embed(TEXTS)[:, :dimension]), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"dimension": 100}, r"must be one of \[64, 128, 256\] .* got 100"),
        ({"dimension": 1024}, "must be one of"),
        (
            {"model": "l3_supercat"},
            r"does not bundle embedding.model 'l3_supercat'; bundled: \['l2",
        ),
    ],
)
def test_what_the_package_does_not_bundle_is_not_fetched(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        WordLlamaEmbedder(EmbeddingSettings(**settings))


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)

    with pytest.raises(MissingExtraError, match=r"hltm-spark\[offline\]"):
        WordLlamaEmbedder(EmbeddingSettings())


def test_loading_writes_no_file_and_leaves_the_root_logger_alone(tmp_path: Path) -> None:
    script = (
        "import logging, socket, sys\n"
        "def no(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = no; socket.getaddrinfo = no\n"
        "from hltm_spark.core.config import EmbeddingSettings\n"
        "from hltm_spark.models.embedders import WordLlamaEmbedder\n"
        "assert WordLlamaEmbedder(EmbeddingSettings()).embed(['a b']).any()\n"
        "assert not logging.getLogger().handlers, logging.getLogger().handlers\n"
        "assert logging.getLogger().level == logging.WARNING\n"
    )
    environment = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": _checkout()}

    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []


def _checkout() -> str:
    return str(Path(__file__).resolve().parents[3])
