"""Answers from OpenAI, Azure OpenAI, or any server that speaks the same protocol.

One client a process, shared by its threads. The SDK's retries are off (`retrying` repeats), and
so is its response model: compatible servers leave out or add what they like, so the plain JSON is
read here, with care.
"""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import openai

from hltm_spark.core.config import EmbeddingSettings, LlmSettings
from hltm_spark.core.errors import (
    EnvironmentProblem,
    HltmError,
    LlmError,
    LlmStopError,
    SettingsError,
)
from hltm_spark.models import retrying
from hltm_spark.models.connections import JsonPosts
from hltm_spark.models.limits import CallLimiter, Try
from hltm_spark.models.llm import FILTERED, REFUSED, TOO_LONG, UNAVAILABLE, Completion, Request
from hltm_spark.models.parsing import json_schema_of
from hltm_spark.models.response_format import FormatChoice, concerns_format
from hltm_spark.models.retrying import error_words

OPENAI_URL = "https://api.openai.com/v1"
NO_KEY = "none"
"""Sent to a server of one's own that has no key; the SDK wants some text."""

_FILTER_CODES = frozenset(
    {"content_filter", "content_policy_violation", "responsibleaipolicyviolation"}
)
_LONG_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
)
_LONG_WORDS = (
    "context length",
    "context size",
    "context window",
    "maximum context",
    "prompt is too long",
)
_PARAMETER_WORDS = ("unsupported", "not support", "unrecognized", "unknown", "not permitted",
                    "too large", "unexpected")  # fmt: skip
_LIMITS = ("max_tokens", "max_completion_tokens")
_REFUSALS = frozenset({400, 422})
_THOUGHT_TYPES = frozenset({"thinking", "reasoning"})

logger = logging.getLogger(__name__)


def make_sdk_client(
    settings: LlmSettings | EmbeddingSettings, *, section: str, azure: bool = False
) -> openai.OpenAI:
    """Return the SDK's client for one section of conf; it makes no call.

    Raises:
        EnvironmentProblem: The variable of the key is not set, and the endpoint is not one's own.
        SettingsError: Azure without its endpoint.
    """
    retrying.quiet_sdk_logs()
    key = os.environ.get(settings.api_key_env, "").strip()
    if not key and (azure or not settings.base_url):
        raise EnvironmentProblem(
            f"the environment variable {settings.api_key_env} ({section}.api_key_env) is not set; "
            f"export the key, or set {section}.base_url for a server of your own"
        )
    if not key.isascii():
        raise EnvironmentProblem(
            f"the environment variable {settings.api_key_env} ({section}.api_key_env) holds "
            "characters that no key has; copy the key again"
        )
    if settings.base_url and not settings.base_url.startswith(("http://", "https://")):
        raise SettingsError(
            f"{section}.base_url must start with http:// or https://, got {settings.base_url!r}"
        )
    shared: dict[str, Any] = {"timeout": settings.timeout_s, "max_retries": 0}
    if azure and isinstance(settings, LlmSettings):
        if not settings.base_url:
            raise SettingsError(f"{section}.base_url must be the Azure endpoint, got ''")
        return openai.AzureOpenAI(
            azure_endpoint=settings.base_url,
            api_version=settings.api_version,
            api_key=key,
            **shared,
        )
    return openai.OpenAI(base_url=settings.base_url or OPENAI_URL, api_key=key or NO_KEY, **shared)


class OpenAiClient:
    """An `LlmClient` over HTTP. Safe to share between threads."""

    def __init__(self, settings: LlmSettings, limiter: CallLimiter | None = None) -> None:
        """Prepare the client; no call is made before `complete`.

        Args:
            settings: Endpoint, model and limits.
            limiter: Lets its calls through; one of its own where not given.

        Raises:
            EnvironmentProblem: The variable of the key is not set.
            SettingsError: Azure without `llm.base_url`.
        """
        self._settings = settings
        self._sdk = make_sdk_client(settings, section="llm", azure=settings.provider == "azure")
        self._posts = JsonPosts(
            self._sdk,
            "/chat/completions",
            model=settings.model,
            timeout_s=settings.timeout_s,
            most=settings.max_concurrency,
        )
        self._format = FormatChoice(settings.structured_output)
        self._limiter = limiter or CallLimiter(settings)
        self._has_warned = False

    @property
    def model(self) -> str:
        """Model name as the ledger records it."""
        return self._settings.model_name

    @property
    def sdk(self) -> openai.OpenAI:
        """The SDK's client: for other endpoints of the same API."""
        return self._sdk

    def complete(self, request: Request) -> Completion:
        """Answer one request.

        Raises:
            LlmError: `filtered`, `too_long`, `refused`, or `unavailable` when the tries ran out.
            LlmStopError: Key, model, quota, or a parameter that this model does not take.
        """
        while True:
            with self._format.turn() as mode:
                try:
                    completion = self._complete_as(request, mode)
                except openai.APIError as error:
                    if self._format.step_down(mode, error):
                        continue
                    if retrying.is_temporary_error(error):
                        self._format.stop_waiting()
                    raise self.explained(error, mode, request) from None
                except retrying.NoAnswerError as error:
                    self._format.stop_waiting()
                    raise LlmError(f"{UNAVAILABLE}: {error}") from None
                self._format.settle()
                self._watch_limit(request, completion)
                return completion

    def close(self) -> None:
        """Close the connections."""
        self._posts.close()
        self._sdk.close()

    def _watch_limit(self, request: Request, completion: Completion) -> None:
        """Tell once of an endpoint that passes over the limit: many know one of its names only."""
        sent, written = self._settings, completion.completion_tokens
        limit = sent.max_output_tokens * request.output_factor
        if written > limit and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "llm.model %r wrote %d tokens where %s is %d: its endpoint does not keep to that; "
                "set llm.output_tokens_parameter = %r",
                sent.model,
                written,
                sent.output_tokens_parameter,
                limit,
                _other_name(sent),
            )

    def _complete_as(self, request: Request, mode: str) -> Completion:
        body = self.body(request, mode)

        def is_temporary(error: BaseException) -> bool:
            return retrying.is_temporary_error(error) and not self._format.is_refusal(mode, error)

        return retrying.call_with_retries(
            lambda: self._once(body),
            max_attempts=self._settings.max_attempts,
            max_retry_s=self._settings.max_retry_s,
            is_temporary=is_temporary,
        )

    def _once(self, body: dict[str, Any]) -> Completion:
        limiter = self._limiter
        with limiter.turn(_charge_of(body)) as one:
            started = time.monotonic()
            try:
                raw = self._posts.post(body)
                answer = to_completion(raw, latency_s=time.monotonic() - started)
            except (openai.APIError, retrying.NoAnswerError) as error:
                _note_error(limiter, one, error)
                raise
            limiter.answered(one, tokens=answer.prompt_tokens + answer.completion_tokens)
            return answer

    def body(self, request: Request, mode: str) -> dict[str, Any]:
        """Return the JSON that is sent for a request in one mode of structured output."""
        settings, system = self._settings, request.system
        if mode == "json_object" and "json" not in f"{system}{request.user}".lower():
            system = f"{system}\n\nAnswer with one JSON object.".lstrip()
        messages = [{"role": "user", "content": _encodable(request.user)}]
        if system:
            messages.insert(0, {"role": "system", "content": _encodable(system)})
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": messages,
            settings.output_tokens_parameter: settings.max_output_tokens * request.output_factor,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        elif mode == "json_schema":
            schema = {
                "name": request.output,
                "strict": True,
                "schema": json_schema_of(request.output),
            }
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def explained(
        self, error: openai.APIError, mode: str, request: Request | None = None
    ) -> HltmError:
        """Return the SDK's error as one of ours: this request's alone, or the end of the run.

        Args:
            error: What the endpoint answered.
            mode: The mode of structured output that was sent.
            request: What was asked, where it is at hand.
        """
        what = retrying.describe_error(error)
        if not isinstance(error, openai.APIStatusError):
            return LlmError(f"{UNAVAILABLE}: {what} in at most {self._settings.max_attempts} tries")
        codes, words = retrying.error_codes(error), error_words(error)
        if codes & _FILTER_CODES:
            return LlmError(f"{FILTERED}: {what}")
        stop = retrying.stop_error(
            error,
            section="llm",
            model=self._settings.model,
            api_key_env=self._settings.api_key_env,
        )
        if stop is not None:
            return stop
        if error.status_code == 413 or codes & _LONG_CODES or _has(words, _LONG_WORDS):
            return LlmError(f"{TOO_LONG}: the input exceeds the model's context: {what}")
        if retrying.is_temporary_error(error):
            return LlmError(f"{UNAVAILABLE}: {what} in at most {self._settings.max_attempts} tries")
        return self._wrong_setting(error, mode, request) or LlmError(f"{REFUSED}: {what}")

    def _wrong_setting(
        self, error: openai.APIStatusError, mode: str, request: Request | None
    ) -> LlmStopError | None:
        """Return the setting to change, where the endpoint refuses one of our parameters."""
        if error.status_code not in _REFUSALS:
            return None
        what, words, sent = retrying.describe_error(error), error_words(error), self._settings
        if mode != "text" and concerns_format(error):
            return LlmStopError(
                f"the endpoint refuses llm.structured_output {mode!r}: {what}; set it to 'auto'"
            )
        named = str(error.param or "") or (words if _has(words, _PARAMETER_WORDS) else "")
        if not error.param and (request is None or _has(request.user, (*_LIMITS, "temperature"))):
            return None  # the endpoint may repeat the input: a document must not stop the run
        if _has(named, _LIMITS):
            return LlmStopError(
                f"llm.model {sent.model!r} refuses {sent.output_tokens_parameter} = "
                f"{sent.max_output_tokens}: {what}; "
                f"set llm.output_tokens_parameter = {_other_name(sent)!r}, "
                "or lower llm.max_output_tokens"
            )
        if sent.temperature is not None and "temperature" in named:
            return LlmStopError(
                f"llm.model {sent.model!r} refuses temperature = {sent.temperature}: {what}; "
                "remove llm.temperature"
            )
        return None


def _other_name(settings: LlmSettings) -> str:
    """Return the name of the output limit that is not in use."""
    return _LIMITS[settings.output_tokens_parameter == _LIMITS[0]]


def _charge_of(body: Mapping[str, Any]) -> int:
    """Return the tokens that a request will be charged with, about: its answer is not known yet."""
    return sum(len(message["content"]) for message in body["messages"]) // 4


def _note_error(limiter: CallLimiter, one: Try, error: Exception) -> None:
    if not retrying.is_temporary_error(error):
        limiter.answered(one)
    elif isinstance(error, openai.RateLimitError):
        limiter.refused(one)
    else:
        limiter.failed(one)


def to_completion(raw: object, *, latency_s: float) -> Completion:
    """Return a chat completion's JSON as our own record.

    Raises:
        NoAnswerError: No choice in it (some gateways report their errors with status 200).
    """
    body = raw if isinstance(raw, Mapping) else {}
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise retrying.NoAnswerError("HTTP 200 without a choice in its body")
    choice = choices[0]
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {}
    usage = body.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    return Completion(
        text=_content(message.get("content")),
        finish_reason="refusal"
        if message.get("refusal")
        else str(choice.get("finish_reason") or ""),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        latency_s=latency_s,
    )


def _content(content: object) -> str:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        texts = [part.get("text") for part in parts if part.get("type") not in _THOUGHT_TYPES]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half surrogates cannot be sent


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
