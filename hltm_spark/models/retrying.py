"""One retry policy for every call to an OpenAI-compatible endpoint, and what its errors mean.

The SDK's own retries are off; tenacity alone repeats a call. Temporary are: no connection, time
limit, HTTP 408, 409, 429 (but not an exhausted quota), 5xx, and an HTTP 200 without an answer in
it. What a provider writes about an error may repeat the prompt, so only its status and its codes
are ever shown.
"""

import email.utils
import logging
import math
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import openai
import tenacity

from hltm_spark.core.errors import LlmStopError

Result = TypeVar("Result")

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
_NO_MONEY = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit_exhausted"}
)
_CODE = re.compile(r"[A-Za-z0-9_.\-\[\]]{1,64}")
_LOGGERS = ("openai", "httpx", "httpx2")


class NoAnswerError(Exception):
    """Raised when a success status comes without an answer in its body; tried again."""


def call_with_retries(
    call: Callable[[], Result],
    *,
    max_attempts: int,
    max_retry_s: float,
    is_temporary: Callable[[BaseException], bool] | None = None,
) -> Result:
    """Return the result of a call that is repeated while its errors are temporary.

    The wait before a repetition is what the server asked for (Retry-After) and a little more, or
    else grows exponentially from half a second to 30 s with jitter. The last error is raised when
    it is not temporary, when the tries are used up, or when the next wait would end after
    `max_retry_s`.

    Args:
        call: One try.
        max_attempts: Tries, the first one included.
        max_retry_s: Seconds that all tries and waits may take together.
        is_temporary: Which errors are tried again; those of this module where not given.
    """
    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_temporary or is_temporary_error),
        stop=tenacity.stop_after_attempt(max_attempts) | tenacity.stop_before_delay(max_retry_s),
        wait=_wait_s,
        reraise=True,
    )
    return policy(call)


def is_temporary_error(error: BaseException) -> bool:
    """Return True where the same request may succeed later."""
    if isinstance(error, openai.APIStatusError):
        is_busy = error.status_code in {408, 409, 429} or error.status_code >= 500
        return is_busy and not has_no_money(error)
    return isinstance(error, openai.APIConnectionError | NoAnswerError)


def has_no_money(error: openai.APIStatusError) -> bool:
    """Return True where the account's quota or credit is used up, which no wait mends."""
    return error.status_code == 402 or bool(error_codes(error) & _NO_MONEY)


def error_codes(error: openai.APIError) -> frozenset[str]:
    """Return the machine-readable words of an error in lower case: code, type, inner code."""
    body = error.body if isinstance(error.body, Mapping) else {}
    inner = body.get("innererror")
    named = [body.get("code"), body.get("type")]
    if isinstance(inner, Mapping):
        named.append(inner.get("code"))
    return frozenset(str(n).lower() for n in named if n is not None and _CODE.fullmatch(str(n)))


def describe_error(error: BaseException) -> str:
    """Return an error in a few words that hold nothing of the request."""
    if isinstance(error, openai.APIStatusError):
        codes = sorted(error_codes(error) - {str(error.status_code)})
        return f"HTTP {error.status_code}" + (f" ({', '.join(codes)})" if codes else "")
    if isinstance(error, openai.APITimeoutError):
        return "no answer within the time limit"
    if isinstance(error, openai.APIConnectionError):
        cause = type(error.__cause__).__name__ if error.__cause__ else "connection error"
        return f"no connection ({cause})"
    return str(error) if isinstance(error, NoAnswerError) else type(error).__name__


def stop_error(
    error: openai.APIStatusError, *, section: str, model: str, api_key_env: str
) -> LlmStopError | None:
    """Return the error that ends the run, where no further request can succeed.

    Args:
        error: What the endpoint answered.
        section: Section of conf that configures the endpoint: `llm` or `embedding`.
        model: Model name as conf has it.
        api_key_env: Environment variable of the key.
    """
    what = describe_error(error)
    if has_no_money(error):
        return LlmStopError(
            f"the quota behind {section}.model {model!r} is used up: {what}; "
            "raise it at the provider, then start again: what is done is kept"
        )
    if error.status_code in {401, 403}:
        return LlmStopError(
            f"the endpoint of {section}.base_url refused the key for {section}.model {model!r}: "
            f"{what}; check the environment variable {api_key_env} ({section}.api_key_env)"
        )
    if error.status_code == 404 or error_codes(error) & {"model_not_found", "deploymentnotfound"}:
        return LlmStopError(
            f"the endpoint does not know {section}.model {model!r}: {what}; check {section}.model "
            f"and that {section}.base_url ends at the API's root (often /v1)"
        )
    return None


def retry_after_s(error: BaseException, *, now: float | None = None) -> float | None:
    """Return the seconds that a server asks to wait, or None where it does not say.

    Args:
        error: Its headers are read: `retry-after-ms`, then `retry-after` as seconds or HTTP date.
        now: Seconds since the epoch, for the date form; the clock where not given.
    """
    if not isinstance(error, openai.APIStatusError):
        return None
    headers = error.response.headers
    seconds = _number(headers.get("retry-after-ms"), unit=0.001)
    if seconds is None:
        seconds = _number(headers.get("retry-after"), unit=1.0)
    if seconds is None:
        seconds = _seconds_until(
            headers.get("retry-after"), now=time.time() if now is None else now
        )
    return None if seconds is None else max(0.0, seconds)


def error_words(error: openai.APIStatusError) -> str:
    """Return the beginning of what the endpoint wrote, to look for known words; never to show."""
    return f"{error.message} {error.body!r}"[:1000].lower()


def quiet_sdk_logs() -> None:
    """Keep the SDK from logging requests: at debug level it writes whole prompts.

    A level that was set on purpose (also by OPENAI_LOG) is left alone.
    """
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def _wait_s(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = retry_after_s(error) if error else None
    spread = random.random()  # noqa: S311  # jitter, no secret
    if asked is not None:
        return asked + spread * min(1.0, 0.1 * asked)
    longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (state.attempt_number - 1))
    return longest * (0.5 + 0.5 * spread)


def _number(text: str | None, *, unit: float) -> float | None:
    try:
        seconds = float(text or "") * unit
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _seconds_until(date: str | None, *, now: float) -> float | None:
    parsed = email.utils.parsedate_tz(date or "")
    if parsed is None:
        return None
    try:
        return email.utils.mktime_tz(parsed) - now
    except (ValueError, OverflowError):
        return None
