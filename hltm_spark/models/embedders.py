"""Texts to unit vectors: what every embedder gives, and the offline one.

Vectors must not depend on what else is in a batch: shards of an update and of a full rebuild are
compared byte by byte.
"""

import importlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.core.errors import MissingExtraError, SettingsError

Vectors = npt.NDArray[np.float32]

_SMALLEST_NORM = 1e-12


class Embedder(Protocol):
    """One embedder a process; safe to share between threads."""

    @property
    def model(self) -> str:
        """Model as tables and manifests record it: `EmbeddingSettings.model_name`."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector for each text, in order.

        Args:
            texts: None of them blank.

        Returns:
            Shape (len(texts), dimension), float32. A row of zeros only where a text has no vector
            (no token that the model knows).

        Raises:
            ValueError: A text is blank.
            EmbeddingError: The model or endpoint gave something that is no such array.
            LlmStopError: No further request can succeed (key, model, quota).
        """
        ...

    def close(self) -> None:
        """Release connections; the embedder is not used again."""
        ...


def unit_rows(vectors: npt.ArrayLike) -> Vectors:
    """Return the rows at length 1; a row of zeros stays one.

    Args:
        vectors: Shape (n, dimension); not changed.
    """
    rows = np.array(vectors, dtype=np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    norms[norms < _SMALLEST_NORM] = 1.0
    return np.ascontiguousarray(rows / norms[:, np.newaxis], dtype=np.float32)


def check_no_blanks(texts: Sequence[str]) -> None:
    """Raise ValueError where a text is blank: it has no meaning to embed.

    Callers leave such texts out, together with their index rows.
    """
    if blanks := [i for i, text in enumerate(texts) if not text.strip()]:
        raise ValueError(f"{len(blanks)} of {len(texts)} texts are blank, the first at {blanks[0]}")


class WordLlamaEmbedder:
    """The static embedder that comes as a package, with its weights: no network, no cache folder.

    A text's vector is the mean of its tokens' vectors. Pooling is done here, text by text: the
    package pads a whole batch to its longest text, which costs memory and nothing else.
    """

    def __init__(self, settings: EmbeddingSettings) -> None:
        """Load the bundled weights.

        Raises:
            MissingExtraError: The package is not installed.
            SettingsError: The package does not bundle that model or dimension.
        """
        self._settings = settings
        model = _load_wordllama(settings)
        self._tokenizer: Any = model.tokenizer
        self._tokenizer.no_padding()
        self._matrix: Vectors = model.embedding

    @property
    def model(self) -> str:
        """Model as tables and manifests record it."""
        return self._settings.model_name

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._matrix.shape[1])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector for each text; see `Embedder.embed`."""
        check_no_blanks(texts)
        rows = np.zeros((len(texts), self.dimension), dtype=np.float64)
        for row, text in zip(rows, texts, strict=True):
            # one text at a time: encode_batch starts threads, which a forked worker must not have
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if known := ids[: self._settings.max_text_tokens]:
                row[:] = self._matrix[known].mean(axis=0, dtype=np.float64)
        return unit_rows(rows)

    def close(self) -> None:
        """Nothing to release."""


def _load_wordllama(settings: EmbeddingSettings) -> Any:
    with _root_logger_kept():
        try:
            package = importlib.import_module("wordllama")
        except ImportError:
            raise MissingExtraError.for_extra(
                package="wordllama", extra="offline", used_by="embedding.provider 'wordllama'"
            ) from None
    folder = Path(str(package.__file__)).parent
    bundled = sorted(
        (file.stem.rpartition("_")[0], int(file.stem.rpartition("_")[2]))
        for file in (folder / "weights").glob("*_[0-9]*.safetensors")
    )
    largest = dict(bundled).get(settings.model)
    if largest is None:
        names = sorted({name for name, _ in bundled})
        raise SettingsError(
            f"wordllama does not bundle embedding.model {settings.model!r}; bundled: {names}"
        )
    sizes = _sizes(package, settings.model)
    if settings.dimension not in (usable := [size for size in sizes if size <= largest]):
        raise SettingsError(
            f"embedding.dimension must be one of {usable} for wordllama's {settings.model!r}, "
            f"got {settings.dimension}"
        )
    return package.WordLlama.load(
        settings.model,
        cache_dir=folder,
        dim=largest,
        trunc_dim=settings.dimension,
        disable_download=True,
    )


def _sizes(package: Any, model: str) -> list[int]:
    """Return the lengths that a vector of this model may be cut to."""
    models = importlib.import_module(f"{package.__name__}.config").WordLlamaModels
    return sorted(getattr(models, model).available_dims)


@contextmanager
def _root_logger_kept() -> Iterator[None]:
    """Undo what wordllama's import does to the root logger (it calls logging.basicConfig)."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in [h for h in root.handlers if h not in handlers]:
            root.removeHandler(handler)
