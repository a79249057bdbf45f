from collections.abc import Mapping

import httpx2
import openai
import pytest

from hltm_spark.models import retrying


def status_error(
    status: int, headers: Mapping[str, str] | None = None, body: object = None
) -> openai.APIStatusError:
    request = httpx2.Request("POST", "http://127.0.0.1/v1")
    response = httpx2.Response(status, headers=dict(headers or {}), request=request)
    return openai.APIStatusError("said", response=response, body=body)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 37.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after_is_read_in_each_of_its_forms(
    headers: dict[str, str], seconds: float | None
) -> None:
    error = status_error(429, headers)

    assert retrying.retry_after_s(error, now=784111740.0) == seconds


def test_the_wait_is_never_shorter_than_the_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)

    def call() -> None:
        raise status_error(429, {"retry-after": "2"})

    with pytest.raises(openai.APIStatusError):
        retrying.call_with_retries(call, max_attempts=20, max_retry_s=1000.0)

    assert len(slept) == 19
    assert all(2.0 <= wait <= 2.2 for wait in slept)
    assert len(set(slept)) > 1


def test_the_wait_grows_with_jitter_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)

    def call() -> None:
        raise status_error(503)

    with pytest.raises(openai.APIStatusError):
        retrying.call_with_retries(call, max_attempts=12, max_retry_s=10_000.0)

    for attempt, wait in enumerate(slept):
        longest = min(30.0, 0.5 * 2**attempt)
        assert longest / 2 <= wait <= longest


def test_an_error_that_is_not_temporary_is_raised_at_once() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise status_error(400)

    with pytest.raises(openai.APIStatusError):
        retrying.call_with_retries(call, max_attempts=5, max_retry_s=10.0)

    assert calls == [1]


def test_only_codes_are_shown_of_what_a_provider_says() -> None:
    body = {"code": "bad_input", "type": "the text: Mr Smith", "message": "Mr Smith"}

    assert retrying.describe_error(status_error(400, body=body)) == "HTTP 400 (bad_input)"
