"""What the errors of an endpoint become: another try, the end of one request or of the run."""

import pytest

from hltm_spark.core.errors import LlmError, LlmStopError
from hltm_spark.models.llm import Request
from tests import llm_server as replies
from tests.llm_server import LlmServer, Reply, serve_llm
from tests.unit.models.openai_calls import REQUEST, SECRET, always, client, complete, failure

# ---- temporary errors


@pytest.mark.parametrize(
    "reply",
    [
        replies.rate_limited(),
        replies.rate_limited(None),
        replies.error(408),
        replies.error(409),
        replies.server_error(502),
        replies.server_error(503),
        replies.reset(),
        replies.raw(b"<html>a gateway's page</html>"),
        replies.raw(b'{"error": {"code": 502}}'),
        replies.raw(b"half a bo", **{"content-type": "text/html"}),
    ],
)
def test_a_temporary_error_is_tried_again(reply: Reply) -> None:
    completion, server = complete([reply, reply, None])

    assert "Oulu" in completion.text
    assert len(server.chats) == 3


def test_one_row_under_a_lasting_limit_costs_max_attempts_requests() -> None:
    error, server = failure(always(replies.rate_limited()), max_attempts=4)

    assert isinstance(error, LlmError)
    assert str(error).startswith("unavailable: HTTP 429 (rate_limit_exceeded)")
    assert len(server.chats) == 4


def test_a_slow_answer_is_a_temporary_error() -> None:
    error, server = failure(always(replies.delayed(1.0)), timeout_s=0.1, max_attempts=2)

    assert str(error).startswith("unavailable: no answer within the time limit")
    assert len(server.chats) == 2


def test_a_wait_that_ends_after_max_retry_s_is_not_begun() -> None:
    error, server = failure(always(replies.rate_limited("60")), max_retry_s=5.0)

    assert str(error).startswith("unavailable: ")
    assert len(server.chats) == 1


def test_a_success_without_an_answer_is_unavailable_in_the_end() -> None:
    error, server = failure(always(replies.raw(b"<html>")), max_attempts=2)

    assert str(error) == "unavailable: HTTP 200 with a body that is not JSON"
    assert len(server.chats) == 2


def test_text_that_cannot_be_encoded_is_sent_all_the_same(server: LlmServer) -> None:
    asked = client(server)

    asked.complete(Request(task="t", output="facets", system="JSON", user="a\ud800b"))
    asked.close()

    assert server.chats[0].user == "a?b"


def test_a_server_that_does_not_answer_at_all_is_unavailable() -> None:
    with serve_llm() as server:
        asked = client(server, max_attempts=2)
    with pytest.raises(LlmError, match=r"^unavailable: no connection"):
        asked.complete(REQUEST)
    asked.close()


pytestmark = pytest.mark.usefixtures("key_and_short_waits")


# ---- errors that end the run


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (replies.insufficient_quota(), "quota behind llm.model 'gpt-test' is used up"),
        (replies.error(402), "quota"),
        (replies.unauthorized(), "OPENAI_API_KEY .llm.api_key_env"),
        (replies.error(403), "OPENAI_API_KEY"),
        (replies.unknown_model(), "does not know llm.model 'gpt-test'"),
        (replies.error(400, code="model_not_found"), "does not know llm.model"),
        (
            replies.error(400, code="unsupported_parameter", param="max_completion_tokens"),
            "set llm.output_tokens_parameter = 'max_tokens'",
        ),
        (
            replies.error(422, message="[{'loc': ['body', 'max_completion_tokens'], 'msg': "
                                       "'Extra inputs are not permitted'}]"),
            "set llm.output_tokens_parameter = 'max_tokens'",
        ),
        (
            replies.error(400, code="unsupported_value", param="temperature"),
            "remove llm.temperature",
        ),
    ],
)  # fmt: skip
def test_a_permanent_error_stops_the_run_after_one_request(reply: Reply, words: str) -> None:
    error, server = failure(always(reply), temperature=0.2)

    assert isinstance(error, LlmStopError)
    with pytest.raises(LlmStopError, match=words):
        raise error
    assert len(server.chats) == 1


# ---- errors of one request


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (replies.too_long(), "too_long"),
        (replies.error(413), "too_long"),
        (replies.error(400, message="This model's maximum context length is 8 tokens"), "too_long"),
        (replies.error(400, type="exceed_context_size_error"), "too_long"),
        (replies.content_filter_error(), "filtered"),
        (replies.error(400, innererror={"code": "ResponsibleAIPolicyViolation"}), "filtered"),
        (replies.error(403, code="content_filter"), "filtered"),
        (replies.error(400, message=f"cannot take: {SECRET}"), "refused"),
        (replies.error(422), "refused"),
    ],
)
def test_an_error_of_one_request_fails_it_alone_after_one_try(reply: Reply, kind: str) -> None:
    reply = Reply(status=reply.status, error={"code": None} | reply.error)

    error, server = failure(always(reply))

    assert isinstance(error, LlmError)
    assert str(error).startswith(f"{kind}: ")
    assert len(server.chats) == 1


def test_an_endpoint_that_repeats_a_document_cannot_stop_the_run() -> None:
    request = Request(task="t", output="facets", system="JSON", user="unsupported: temperature")
    with serve_llm(always(replies.error(400, message="bad: unsupported: temperature"))) as server:
        asked = client(server, temperature=0.5)

        with pytest.raises(LlmError, match=r"^refused: "):
            asked.complete(request)
        asked.close()
