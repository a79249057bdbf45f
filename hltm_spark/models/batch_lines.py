"""What stands in the files of a batch: request bodies going out, answers and errors coming back.

A batch is a JSONL file of request bodies; its answers come as a file of one JSON object a line, in
no order, and what failed as a second one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import openai

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import LlmError, LlmStopError
from hltm_spark.models import retrying
from hltm_spark.models.llm import REFUSED, Completion, Request
from hltm_spark.models.openai_client import OpenAiClient, to_completion
from hltm_spark.models.response_format import FormatChoice

ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"

_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_FULL = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded"})


class LaterError(Exception):
    """Raised where one line was not answered and may be when it is asked again."""


class FormatRefusedError(Exception):
    """Raised where one line was refused because of `response_format`, and `auto` may step down.

    Attributes:
        cause: What the endpoint answered.
    """

    cause: openai.APIStatusError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """A batch as the provider sees it now.

    Attributes:
        status: `validating`, `in_progress`, ..., `completed`, `failed`, `expired`, `cancelled`.
        counts: Requests that were answered, that failed, and all.
        file_ids: Files with answers, then with errors; what an expired batch has is kept.
        errors: Why the whole batch failed: code, message and param of each.
    """

    batch_id: str
    status: str
    counts: tuple[int, int, int]
    file_ids: tuple[str, ...]
    errors: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_ended(self) -> bool:
        """True where nothing more will come."""
        return self.status in _ENDED

    @property
    def is_queue_full(self) -> bool:
        """True where the batch failed because too much was waiting at the provider."""
        return self.status == "failed" and any(e["code"] in _FULL for e in self.errors)

    def __str__(self) -> str:
        answered, failed, total = self.counts
        return f"{self.status}, {answered} of {total} answered, {failed} failed"


class BatchLines:
    """Writes and reads the lines of batch files.

    Attributes:
        format: Mode of structured output; where it is open, a batch that is refused as a whole
            steps it down.
    """

    def __init__(self, settings: LlmSettings, chat: OpenAiClient) -> None:
        """Write and read as a chat client does; no call is made, ever."""
        self._settings, self._chat = settings, chat
        self.format = FormatChoice(settings.structured_output)

    def line(self, custom_id: str, request: Request) -> bytes:
        """Return one line of a batch file, in the present mode of structured output."""
        body = self._chat.body(request, self.format.mode)
        line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"

    def completion(self, line: Mapping[str, Any], mode: str) -> Completion:
        """Return the answer in a line of a result file.

        Args:
            line: From `read_lines`.
            mode: The mode of structured output that the batch was sent with.

        Raises:
            LaterError: It was not answered: expired, cancelled, or a temporary error.
            FormatRefusedError: The endpoint does not take the mode, and `auto` may step down.
            LlmError: This request failed for good; kinds as in `models.llm`.
            LlmStopError: No further request can succeed.
        """
        response, error = line.get("response"), line.get("error")
        if not isinstance(response, Mapping):
            failed = _error(0, error)
            if (stop := self._stop(failed)) is not None:
                raise stop
            raise LaterError(", ".join(sorted(retrying.error_codes(failed))) or "no answer")
        status = response.get("status_code")
        if status == 200:
            try:
                return to_completion(response.get("body"), latency_s=0.0)
            except retrying.NoAnswerError as problem:
                raise LaterError(str(problem)) from None
        body = response.get("body")
        inner = body.get("error", body) if isinstance(body, Mapping) else error
        raise self._explained(_error(status if isinstance(status, int) else 0, inner), mode)

    def check(self, state: BatchState, mode: str) -> None:
        """Return if the requests of a batch that ended may be asked again.

        Raises:
            FormatRefusedError: The batch failed because of the mode, and `auto` may step down.
            LlmStopError: It failed because of the model or the quota.
        """
        if state.status != "failed":
            return
        for error in state.errors:
            explained = self._explained(_error(400, error), mode)
            if isinstance(explained, FormatRefusedError | LlmStopError):
                raise explained

    def _explained(self, error: openai.APIStatusError, mode: str) -> Exception:
        # a 500 may be a mode that is not known, but a batch of them is rather an outage
        if error.status_code != 500 and self.format.is_refusal(mode, error):
            refused = FormatRefusedError(retrying.describe_error(error))
            refused.cause = error
            return refused
        if retrying.is_temporary_error(error):
            return LaterError(retrying.describe_error(error))
        if error.status_code == 0:
            return LlmError(f"{REFUSED}: a line without a status")
        return self._chat.explained(error, mode)

    def _stop(self, error: openai.APIStatusError) -> LlmStopError | None:
        settings = self._settings
        return retrying.stop_error(
            error, section="llm", model=settings.model, api_key_env=settings.api_key_env
        )


def read_lines(files: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of result files, in order; {} for a line that is none."""
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                if not line.strip():
                    continue
                try:
                    found = json.loads(line)
                except ValueError:
                    found = {}
                yield found if isinstance(found, Mapping) else {}


def _error(status: int, body: object) -> openai.APIStatusError:
    """Return an error of a result file as the SDK raises it for a request of its own."""
    body = body if isinstance(body, Mapping) else {}
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    message = str(body.get("message") or "")
    return openai.APIStatusError(message, response=cast("Any", response), body=dict(body))
