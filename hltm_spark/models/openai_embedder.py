"""Vectors from an OpenAI-compatible embeddings endpoint.

Batches are bounded by items and by estimated tokens; a batch that is refused for its size is
halved, and later batches keep to what was learned. Nothing is taken on trust: results are matched
by their index, and count, type, dimension, finiteness and length of every vector are checked.
"""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import openai

from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.core.errors import EmbeddingError
from hltm_spark.core.tokens import cut_to_tokens, estimate_tokens
from hltm_spark.models import retrying
from hltm_spark.models.connections import post_json
from hltm_spark.models.embedders import Vectors, check_no_blanks, unit_rows
from hltm_spark.models.openai_client import make_sdk_client

MAX_RETRY_S = 300.0
SHORTEST_CUT = 32
"""Estimated tokens below which a text that the endpoint refuses as too long is not cut further."""

_REFUSALS = frozenset({400, 413, 422})
_LONG_WORDS = ("context", "too long", "too large", "maximum", "token", "batch size", "exceed")


class OpenAiEmbedder:
    """An `Embedder` over HTTP. Safe to share between threads."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        """Prepare the client; no call is made before `embed`.

        Raises:
            EnvironmentProblem: The variable of the key is not set.
        """
        self._settings = settings
        self._sdk = make_sdk_client(settings, section="embedding")
        self._state = threading.Lock()
        self._max_items = settings.max_batch_items
        self._max_tokens = settings.max_batch_tokens
        self._asks_dimension = True

    @property
    def model(self) -> str:
        """Model as tables and manifests record it."""
        return self._settings.model_name

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._settings.dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector for each text; see `Embedder.embed`.

        A text over `embedding.max_text_tokens` is cut to that many, by the estimate; where the
        endpoint still finds it too long, its halves are tried.
        """
        check_no_blanks(texts)
        limit = min(self._settings.max_text_tokens, self._settings.max_batch_tokens)
        cut = [cut_to_tokens(text, limit) for text in texts]
        rows = np.zeros((len(cut), self.dimension), dtype=np.float64)
        start = 0
        for batch in self._batches(cut):
            rows[start : start + len(batch)] = self._embed_batch(batch)
            start += len(batch)
        return unit_rows(rows)

    def close(self) -> None:
        """Close the connections."""
        self._sdk.close()

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        tokens = 0
        for text in texts:
            cost = estimate_tokens(text)
            is_full = len(batch) >= self._max_items or tokens + cost > self._max_tokens
            if batch and is_full:
                yield batch
                batch, tokens = [], 0
            batch.append(text)
            tokens += cost
        if batch:
            yield batch

    def _embed_batch(self, batch: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        try:
            return self._request(batch)
        except openai.APIStatusError as error:
            if self._gave_up_dimension(error):
                return self._embed_batch(batch)
            if error.status_code not in _REFUSALS:
                raise self._explained(error, batch) from None
            parts = self._smaller(batch, error)
        except openai.APIError as error:
            raise self._explained(error, batch) from None
        except retrying.NoAnswerError as error:
            raise EmbeddingError(f"embedding endpoint: {error}") from None
        return np.concatenate([self._embed_batch(part) for part in parts])

    def _request(self, batch: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        body: dict[str, Any] = {
            "model": self._settings.model,
            "input": batch,
            "encoding_format": "float",  # the SDK's default is base64, which some servers get wrong
        }
        if self._asks_dimension:
            body["dimensions"] = self._settings.dimension
        return retrying.call_with_retries(
            lambda: to_rows(
                post_json(self._sdk, "/embeddings", body),
                count=len(batch),
                dimension=self._settings.dimension,
            ),
            max_attempts=self._settings.max_attempts,
            max_retry_s=MAX_RETRY_S,
        )

    def _gave_up_dimension(self, error: openai.APIStatusError) -> bool:
        """Stop asking for a dimension where the model cannot choose; return True to try again."""
        named = str(error.param or "") or retrying.error_words(error)
        if error.status_code not in _REFUSALS or not self._asks_dimension:
            return False
        if "dimensions" not in named and "matryoshka" not in named:
            return False
        with self._state:
            self._asks_dimension = False
        return True

    def _smaller(self, batch: list[str], error: openai.APIStatusError) -> list[list[str]]:
        """Return what to send in place of a refused batch.

        Raises:
            EmbeddingError: It is one text, and its size is not the reason or cannot be cut further.
        """
        tokens = sum(estimate_tokens(text) for text in batch)
        if len(batch) > 1:
            half = len(batch) // 2
            with self._state:
                if tokens > self._max_tokens // 2:
                    self._max_tokens = max(1, tokens // 2)
                else:
                    self._max_items = min(self._max_items, half)
            return [batch[:half], batch[half:]]
        words = retrying.error_words(error)
        is_too_long = error.status_code == 413 or any(word in words for word in _LONG_WORDS)
        if not is_too_long or tokens // 2 < SHORTEST_CUT:
            raise self._explained(error, batch)
        return [[cut_to_tokens(batch[0], tokens // 2)]]

    def _explained(self, error: openai.APIError, batch: list[str]) -> Exception:
        if isinstance(error, openai.APIStatusError):
            stop = retrying.stop_error(
                error,
                section="embedding",
                model=self._settings.model,
                api_key_env=self._settings.api_key_env,
            )
            if stop is not None:
                return stop
        return EmbeddingError(
            f"no vectors for {len(batch)} texts of {sum(map(len, batch))} characters from "
            f"embedding.model {self._settings.model!r}: {retrying.describe_error(error)}"
        )


def to_rows(raw: object, *, count: int, dimension: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return an embeddings response as rows in the order of the request.

    Args:
        raw: The response's JSON.
        count: Texts in the request.
        dimension: Length that every vector must have.

    Raises:
        NoAnswerError: No list of results in it.
        EmbeddingError: Results are missing or repeated, or a vector is not a list of `dimension`
            finite numbers, or is all zeros.
    """
    found = raw.get("data") if isinstance(raw, Mapping) else None
    if not isinstance(found, list):
        raise retrying.NoAnswerError("HTTP 200 without a list of vectors in its body")
    by_index = {item.get("index"): item for item in found if isinstance(item, Mapping)}
    if len(found) != count or by_index.keys() != set(range(count)):
        raise EmbeddingError(
            f"embedding endpoint gave {len(found)} results with {len(by_index)} distinct indexes "
            f"for {count} texts"
        )
    rows = np.zeros((count, dimension), dtype=np.float64)
    for index in range(count):
        rows[index] = _vector(by_index[index].get("embedding"), dimension=dimension)
    return rows


def _vector(raw: object, *, dimension: int) -> list[float]:
    if not isinstance(raw, list) or not all(isinstance(x, int | float) for x in raw):
        raise EmbeddingError(
            f"embedding endpoint gave a vector as {type(raw).__name__}, wanted a list of numbers "
            "(encoding_format 'float')"
        )
    if len(raw) != dimension:
        raise EmbeddingError(
            f"embedding.dimension is {dimension}, the endpoint gave {len(raw)}; "
            f"set embedding.dimension = {len(raw)}"
        )
    squared = math.fsum(float(x) ** 2 for x in raw)
    if not math.isfinite(squared) or squared <= 0.0:
        raise EmbeddingError("embedding endpoint gave a vector that is all zeros or not finite")
    return [float(x) for x in raw]
