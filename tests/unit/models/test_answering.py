from dataclasses import dataclass, field

import pytest

from hltm_spark.core.errors import LlmError, LlmStopError
from hltm_spark.core.prompts import parse_prompt
from hltm_spark.models.answering import ask
from hltm_spark.models.llm import Completion, Request
from hltm_spark.models.parsing import ParsedAnswer
from tests.scripted_client import ScriptedClient

REQUEST = Request(task="leaf/summary", output="summary", system="s", user="u")
RIGHT = '{"summary": "Oulu [d1]."}'


@dataclass
class Journal:
    kept: list[tuple[str, str, bool]] = field(default_factory=list)

    def __call__(self, request: Request, completion: Completion, usable: bool) -> None:  # noqa: FBT001
        self.kept.append((request.task, completion.text, usable))


def asked(client: ScriptedClient, journal: Journal) -> ParsedAnswer:
    return ask(client, REQUEST, source_ids=["d1"], on_completion=journal)


def test_a_right_answer_takes_one_call() -> None:
    client, journal = ScriptedClient([RIGHT]), Journal()

    parsed = asked(client, journal)

    assert parsed.fields == {"summary": "Oulu [d1]."}
    assert journal.kept == [("leaf/summary", RIGHT, True)]


def test_a_malformed_answer_is_repaired_by_one_call() -> None:
    broken = '{"summary": "Oulu <memory> $x {curly}"'
    client, journal = ScriptedClient([broken, RIGHT]), Journal()

    parsed = asked(client, journal)

    assert parsed.fields == {"summary": "Oulu [d1]."}
    assert journal.kept == [("leaf/summary", broken, False), ("repair/response", RIGHT, True)]
    repair = client.asked[1]
    assert (repair.output, repair.payload) == ("summary", {})
    assert '{"summary": "Oulu &lt;memory> $x {curly}"' in repair.user
    assert 'Keys: "summary"' in repair.user


def test_a_second_malformed_answer_fails_the_request() -> None:
    client, journal = ScriptedClient(["not JSON", "{}", RIGHT]), Journal()

    with pytest.raises(LlmError, match=r"^malformed: .*; after one repair: malformed: "):
        asked(client, journal)

    assert [usable for *_, usable in journal.kept] == [False, False]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((RIGHT, "content_filter"), "filtered"),
        (("", "refusal"), "refused"),
        (("I'm sorry, I can't help with that.", "stop"), "refused"),
        (("", "stop"), "malformed"),
    ],
)
def test_what_no_repair_can_mend_is_kept_and_not_asked_again(
    answer: tuple[str, str], kind: str
) -> None:
    client, journal = ScriptedClient([answer, RIGHT]), Journal()

    with pytest.raises(LlmError, match=f"^{kind}: "):
        asked(client, journal)

    assert journal.kept == [("leaf/summary", answer[0], False)]


def test_an_answer_that_was_cut_off_is_asked_for_once_more_with_a_larger_limit() -> None:
    client, journal = ScriptedClient([(RIGHT, "length"), RIGHT]), Journal()

    parsed = asked(client, journal)

    assert parsed.fields == {"summary": "Oulu [d1]."}
    assert [request.output_factor for request in client.asked] == [1, 2]
    assert [usable for *_, usable in journal.kept] == [False, True]


def test_an_answer_that_is_cut_off_twice_fails_the_request() -> None:
    client, journal = ScriptedClient([("{", "length"), ("{", "length"), RIGHT]), Journal()

    with pytest.raises(LlmError, match=r"^truncated: "):
        asked(client, journal)

    assert [usable for *_, usable in journal.kept] == [False, False]


def test_a_longer_answer_that_cannot_be_read_is_repaired() -> None:
    client, journal = ScriptedClient([("{", "length"), "no JSON", RIGHT]), Journal()

    assert asked(client, journal).fields == {"summary": "Oulu [d1]."}


def test_the_extractive_provider_is_never_asked_to_repair() -> None:
    client, journal = ScriptedClient(["not JSON", RIGHT], model="extractive"), Journal()

    with pytest.raises(LlmError, match=r"^malformed: "):
        asked(client, journal)

    assert len(client.asked) == 1


def test_a_call_that_fails_is_not_kept() -> None:
    client, journal = ScriptedClient([LlmError("unavailable: HTTP 503")]), Journal()

    with pytest.raises(LlmError, match=r"^unavailable: HTTP 503$"):
        asked(client, journal)

    assert journal.kept == []


def test_a_stop_during_the_repair_stops_the_run() -> None:
    client, journal = ScriptedClient(["not JSON", LlmStopError("no quota")]), Journal()

    with pytest.raises(LlmStopError, match="no quota"):
        asked(client, journal)


def test_the_repair_prompt_may_be_given() -> None:
    text = '+++\nid = "repair/response"\noutput = "facets"\n+++\n## system\ns\n## user\nmend $keys'
    client, journal = ScriptedClient(["not JSON", RIGHT]), Journal()

    ask(
        client,
        REQUEST,
        source_ids=["d1"],
        on_completion=journal,
        repair=parse_prompt(text, name="repair/response"),
    )

    assert client.asked[1].user == 'mend "summary"'
