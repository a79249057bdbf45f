"""OpenAI's Batch API over HTTP: files of requests that are answered within a day, for less.

What stands in the files is `batch_lines`; which batches there are, and what becomes of their
answers, is the pipeline's.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import openai
from openai.types import Batch

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import LlmError, LlmStopError
from hltm_spark.models import retrying
from hltm_spark.models.batch_lines import ENDPOINT, BatchState
from hltm_spark.models.llm import UNAVAILABLE
from hltm_spark.models.openai_client import OpenAiClient

Result = TypeVar("Result")

KEY = "hltm_key"
"""Name of the metadata value by which a run knows a batch again."""
FILE_TIMEOUT_S = 600.0
"""For files of up to some hundred MB, of which `llm.timeout_s` knows nothing."""
CLOCK_TOLERANCE_S = 24 * 3600
"""A batch is looked for among those that are at most so much older than its key."""

_NO_BATCHES = (
    "the endpoint of llm.base_url has no Batch API (HTTP 404); set llm.execution = 'interactive'"
)


class NotStartedError(LlmStopError):
    """Raised where a batch was refused and is certainly not at the provider."""


class BatchClient:
    """The Batch endpoints of one provider."""

    def __init__(self, settings: LlmSettings, chat: OpenAiClient) -> None:
        """Share the connections of a chat client; no call is made yet."""
        self._settings, self._sdk = settings, chat.sdk

    def upload(self, file: Path) -> str:
        """Upload a batch file; return the provider's id of it.

        Raises:
            LlmStopError: Key or quota, no Batch API there, or the file is refused.
            LlmError: No answer after all tries.
        """

        def send() -> str:
            with file.open("rb") as stream:
                made = self._sdk.files.create(
                    file=(file.name, stream, "application/jsonl"),
                    purpose="batch",
                    timeout=FILE_TIMEOUT_S,
                )
            return _id_of(made)

        size = file.stat().st_size
        hint = "lower llm.batch_max_requests or llm.batch_max_bytes"
        return self._call(send, what=f"a batch file of {size} bytes", hint=hint)

    def create(self, file_id: str, key: str, *, since: float) -> str:
        """Start a batch; return its id.

        A try that ended without an answer may have started it, so each later one looks first.

        Args:
            file_id: From `upload`.
            key: Goes with the batch as metadata.
            since: Unix time at which the key was made.

        Raises:
            NotStartedError: The endpoint refuses it.
            LlmStopError: The same, after a try that may have started it.
            LlmError: No answer after all tries: it may have been started.
        """
        tries = 0

        def send() -> str:
            nonlocal tries
            tries += 1
            if tries > 1 and (found := self._search(key, since=since)):
                return found
            made = self._sdk.batches.create(
                input_file_id=file_id,
                endpoint=ENDPOINT,
                completion_window="24h",
                metadata={KEY: key},
            )
            return _id_of(made)

        try:
            return self._call(send, what="a batch", hint="set llm.execution = 'interactive'")
        except LlmStopError as error:
            if tries > 1:
                raise
            raise NotStartedError(str(error)) from None

    def find(self, key: str, *, since: float) -> str | None:
        """Return the id of the batch that was started with a key, or None where there is none.

        Raises:
            LlmStopError: As `create`.
            LlmError: No answer after all tries.
        """
        return self._call(lambda: self._search(key, since=since), what="a list of batches")

    def retrieve(self, batch_id: str) -> BatchState:
        """Return how far a batch is.

        Raises:
            LlmStopError: The key is refused, or the batch is not known.
            LlmError: No answer after all tries.
        """
        return self._call(
            lambda: _state(self._sdk.batches.retrieve(batch_id)),
            what=f"batch {batch_id}",
            missing=f"the endpoint of llm.base_url does not know batch {batch_id}; check that the "
            "key is of the project that it was submitted with",
        )

    def download(self, file_id: str, target: Path) -> None:
        """Write a result file to disk; one that the provider has no more is empty.

        Raises:
            LlmStopError: The key is refused.
            LlmError: No answer after all tries.
        """

        def fetch() -> None:
            target.write_bytes(b"")
            answer = self._sdk.files.with_streaming_response.content(
                file_id, timeout=FILE_TIMEOUT_S
            )
            try:
                with answer as response:
                    response.stream_to_file(target)
            except openai.NotFoundError:
                return

        self._call(fetch, what=f"the results {file_id}")

    def _search(self, key: str, *, since: float) -> str | None:
        for batch in self._sdk.batches.list(limit=100):  # the newest first
            if (batch.metadata or {}).get(KEY) == key:
                return batch.id
            if (batch.created_at or since) < since - CLOCK_TOLERANCE_S:
                return None
        return None

    def _call(
        self,
        call: Callable[[], Result],
        *,
        what: str,
        hint: str = "",
        missing: str = _NO_BATCHES,
    ) -> Result:
        def read() -> Result:
            try:
                return call()
            except (json.JSONDecodeError, UnicodeDecodeError):
                raise retrying.NoAnswerError("HTTP 200 with a body that is not JSON") from None

        try:
            return retrying.call_with_retries(
                read,
                max_attempts=self._settings.max_attempts,
                max_retry_s=self._settings.max_retry_s,
            )
        except (openai.APIError, retrying.NoAnswerError) as error:
            described = retrying.describe_error(error)
            if retrying.is_temporary_error(error) or not isinstance(error, openai.APIStatusError):
                raise LlmError(f"{UNAVAILABLE}: {described}") from None
            if error.status_code == 404:
                raise LlmStopError(missing) from None
            words = f"the endpoint refuses {what}: {described}" + (f"; {hint}" if hint else "")
            stop = retrying.stop_error(
                error,
                section="llm",
                model=self._settings.model,
                api_key_env=self._settings.api_key_env,
            )
            raise stop or LlmStopError(words) from None


def _id_of(made: object) -> str:
    found = getattr(made, "id", None)
    if not isinstance(found, str) or not found:
        raise retrying.NoAnswerError("HTTP 200 without an id in its body")
    return found


def _state(batch: Batch) -> BatchState:
    """Return a batch's state; compatible servers leave out what they like."""
    batch_id, counts = _id_of(batch), batch.request_counts
    files = (batch.output_file_id, batch.error_file_id)
    errors = (batch.errors.data if batch.errors else None) or []
    return BatchState(
        batch_id=batch_id,
        status=str(batch.status),
        counts=(counts.completed, counts.failed, counts.total) if counts else (0, 0, 0),
        file_ids=tuple(file_id for file_id in files if file_id),
        errors=tuple({"code": e.code, "message": e.message, "param": e.param} for e in errors),
    )
