import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hltm_spark.core.escaping import escape_text
from hltm_spark.core.prompts import OUTPUTS, TASKS
from hltm_spark.core.records import Child, Document, NodeInput, Views
from hltm_spark.core.views import assemble_views
from hltm_spark.models.facets import one_line
from hltm_spark.models.fan_in import split_input
from hltm_spark.models.llm import Request
from hltm_spark.models.parsing import parse_answer
from hltm_spark.models.requests import NodePrompts
from serving.results import Context, Hit, Usage
from tests.builders import child, document, facet, node, pair
from tests.golden_prompts import query_requests, repair_request, shipped_settings
from tests.hostile import (
    CLAIMED_IDS,
    HOSTILE,
    TAG_NAMES,
    Element,
    chat_markup,
    read_elements,
    unescape_text,
)

SETTINGS = shipped_settings("hiring")
ALL_PROMPTS = [
    NodePrompts.load(shipped_settings("hiring", layout=n)) for n in ("fused", "separate")
]
BEFORE, AFTER = document("before", text="City: Oulu"), document("after", text="City: Turku")


def leaf(hostile: Document) -> NodeInput:
    return node(BEFORE, hostile, AFTER, node_id="acme/s1/p1", level="project")


def obeying_views(hostile: Document) -> Views:
    """Return the views that a model writes which repeats a document in every field."""
    said = f"{hostile.doc_id} {hostile.text} {hostile.metadata}"
    item = {"question": said, "answer": said, "sources": [*CLAIMED_IDS, hostile.doc_id]}
    answer = {
        "facets": [{"name": said[:2000], "value": said, "sources": [*CLAIMED_IDS]}],
        "rationale": said,
        "question_answers": [item],
        "summary": said,
        "one_sentence_summary": said,
    }
    given = leaf(hostile)
    parsed = parse_answer(json.dumps(answer), "stop", output="fused", source_ids=given.source_ids)
    return assemble_views(given, parsed.fields)


def parent(hostile: Document) -> NodeInput:
    """Return a node over a child that repeats a hostile document, which is also its own."""
    group = Child(
        node_id="acme/s1/~0123abcd4567", views=obeying_views(hostile), is_group=True, size=3
    )
    written = Child(node_id="acme/s1/p1", views=obeying_views(hostile))
    return node(child("acme/s1/p0"), written, group, hostile, AFTER)


def node_requests(given: NodeInput, *, summary: str) -> Iterator[Request]:
    """Yield every request of a node, in both layouts."""
    for prompts in ALL_PROMPTS:
        for task in TASKS[prompts.layout]:
            is_second = task == "one_sentence_summary"
            yield prompts.request(given, task, summary=summary if is_second else None)


def inputs_shown(request: Request) -> bool:
    return not request.task.endswith("one_sentence_summary")


def as_document(element: Element) -> tuple[str, str]:
    return dict(element.attributes)["id"], unescape_text(element.body[1:-1])


def child_pieces(given: Child) -> list[str]:
    """Return what the prompt shows of a child, each piece as the views have it."""
    facets = [f"- {f.name}: {f.value}" for f in given.views.facets]
    pairs = [f"- {q.question} {q.answer}" for q in given.views.question_answers]
    return [*facets, *pairs, f"summary: {given.views.summary}"]


def shown_pieces(element: Element) -> list[str]:
    """Return the pieces of a child as the prompt shows them, unescaped."""
    before, _, summary = element.body[1:-1].partition("\nsummary: ")
    lines = [re.sub(r" \(1 of 1\)$", "", line) for line in before.split("\n")]
    labels = {"facets:", "question-answer pairs:"}
    pieces = [line for line in lines if line not in labels]
    return [unescape_text(piece) for piece in (*pieces, f"summary: {summary}")]


def context_of(hostile: Document) -> Context:
    views = obeying_views(hostile)
    found: dict[str, Any] = {"node_id": "acme/s1/p1", "level": "project", "score": 1.0}
    documents = (hostile.doc_id, "before")
    facets = tuple(
        Hit(**found, view="facet", name=f.name, text=f.value, documents=documents, total=2)
        for f in views.facets
    )
    questions = tuple(
        Hit(**found, view="question", text=q.question, answer=q.answer, documents=documents)
        for q in views.question_answers
    )
    summary = Hit(**found, view="summary", text=views.summary, documents=documents)
    evidence = Hit(**found, view="evidence", name=hostile.author, text=hostile.text)
    return Context(
        query=hostile.text,
        query_facets=(),
        facets=facets,
        questions=questions,
        summaries=(summary,),
        evidence=(evidence,),
        usage=Usage(),
        seconds=0.0,
    )


hostile_documents = pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())


def test_there_are_many_kinds_of_hostile_documents() -> None:
    assert len(HOSTILE) >= 25


# ---- leaf and parent prompts


@hostile_documents
def test_a_hostile_document_stays_between_its_delimiters_in_a_leaf_prompt(
    hostile: Document,
) -> None:
    given = leaf(hostile)

    for request in node_requests(given, summary="s"):
        if inputs_shown(request):
            elements = read_elements(request.user)
            assert [element.name for element in elements] == ["document"] * 3
            assert [as_document(element) for element in elements] == [
                (" ".join(d.doc_id.split()), d.text) for d in given.documents
            ]
        assert chat_markup(request.user) == []


@hostile_documents
def test_what_a_model_repeats_of_it_is_escaped_again_in_a_parent_prompt(hostile: Document) -> None:
    given = parent(hostile)

    for request in node_requests(given, summary="s"):
        if inputs_shown(request):
            elements = read_elements(request.user)
            assert [e.name for e in elements] == ["child"] * 3 + ["document"] * 2
            shown = [dict(e.attributes)["id"] for e in elements]
            assert shown == [" ".join(source.split()) for source in given.source_ids]
            for element, below in zip(elements[1:3], given.children[1:], strict=True):
                assert shown_pieces(element) == child_pieces(below)
            assert as_document(elements[3])[1] == hostile.text
        assert chat_markup(request.user) == []


@hostile_documents
def test_it_says_nothing_outside_of_its_element(hostile: Document) -> None:
    harmless = replace(BEFORE, doc_id="hostile")
    told = [
        *node_requests(leaf(hostile), summary="s"),
        *node_requests(parent(hostile), summary="s"),
    ]
    plain = [
        *node_requests(leaf(harmless), summary="s"), *node_requests(parent(harmless), summary="s")
    ]  # fmt: skip

    for request, other in zip(told, plain, strict=True):
        assert request.system == other.system
        if inputs_shown(request):
            outer, inner = request.user.split("<", 1), other.user.split("<", 1)
            assert outer[0] == inner[0]
            assert request.user.rpartition(">")[2] == other.user.rpartition(">")[2]


@hostile_documents
def test_its_attributes_are_whole_and_are_its_own(hostile: Document) -> None:
    request = ALL_PROMPTS[0].request(leaf(hostile), "fused")

    shown = dict(read_elements(request.user)[1].attributes)

    own = {"id": hostile.doc_id, "kind": hostile.kind, "time": hostile.event_time}
    own = {name: " ".join(value.split()) for name, value in {**own, "part": hostile.part}.items()}
    assert {name: shown.pop(name, "") for name in own} == own
    beside = [" ".join(value.split()) for _, value in sorted(hostile.metadata.items())]
    assert list(shown.values()) == beside
    assert not {"id", "kind", "time", "part", "stands-for"} & {name.casefold() for name in shown}


@hostile_documents
def test_a_summary_that_repeats_it_stays_in_the_memory(hostile: Document) -> None:
    summary = obeying_views(hostile).summary

    for request in node_requests(leaf(hostile), summary=summary):
        if not inputs_shown(request):
            (element,) = read_elements(request.user)
            assert element.name == "memory"
            shown = unescape_text(element.body[1:-1])
            assert summary.startswith(shown)  # a long one is cut to the budget
            assert len(shown) == len(summary) or len(shown) > 1_000
        assert chat_markup(request.user) == []


# ---- repair and query prompts


@hostile_documents
@pytest.mark.parametrize("output", sorted(OUTPUTS))
def test_an_unreadable_answer_that_repeats_it_stays_in_the_repair_prompt(
    hostile: Document, output: str
) -> None:
    right = {
        "facets": {},
        "question_answers": [{"question": "Q?", "answer": "A"}],
        **dict.fromkeys(("rationale", "summary", "one_sentence_summary", "answer"), "x"),
    }
    unreadable = f'It says {hostile.text}\nand so {{"'

    request = repair_request(unreadable, right=json.dumps(right), output=output)

    (element,) = read_elements(request.user)
    assert element.name == "memory"
    assert unescape_text(element.body[1:-1]) == unreadable
    assert chat_markup(request.user) == []


@hostile_documents
def test_it_stays_in_its_memory_and_its_question_when_something_is_asked(
    hostile: Document,
) -> None:
    context = context_of(hostile)

    facets, answer = query_requests(context, SETTINGS)

    (question,) = read_elements(facets.user)
    assert (question.name, unescape_text(question.body[1:-1])) == ("question", hostile.text)
    *memories, question = read_elements(answer.user)
    assert (question.name, unescape_text(question.body[1:-1])) == ("question", hostile.text)
    assert {element.name for element in memories} == {"memory"}
    assert {dict(element.attributes)["id"] for element in memories} == {"acme/s1/p1"}
    bodies = [unescape_text(element.body) for element in memories]
    summary = next(h.text for h in context.summaries)
    if len(memories) == len(context.hits):
        assert summary in bodies
        assert any(body.endswith(hostile.text) for body in bodies)
    assert chat_markup(facets.user + answer.user) == []


# ---- sources


@hostile_documents
def test_ids_that_it_claims_are_never_sources(hostile: Document) -> None:
    given = leaf(hostile)
    cited = [*CLAIMED_IDS, *hostile.metadata.values(), hostile.text, "before"]

    views = obeying_views(hostile)
    parsed = parse_answer(
        json.dumps({"rationale": "", "answer": "x", "citation": cited}),
        "stop",
        output="answer",
        source_ids=given.source_ids,
    )

    sources = [s for item in views.facets for s in item.sources]
    sources += [s for item in views.question_answers for s in item.sources]
    assert sources
    assert set(sources) <= set(given.source_ids)
    assert set(parsed.fields["citation"]) <= set(given.source_ids)
    assert "before" in parsed.fields["citation"]
    assert not set(CLAIMED_IDS) & {*sources, *parsed.fields["citation"]}


@hostile_documents
def test_its_own_id_is_understood_as_the_prompt_shows_it(hostile: Document) -> None:
    given = leaf(hostile)
    request = ALL_PROMPTS[0].request(given, "fused")
    as_written = request.user.split('<document id="')[2].partition('"')[0]

    parsed = parse_answer(
        json.dumps({"facets": {"a": {"value": "b", "sources": [as_written]}}}),
        "stop",
        output="facets",
        source_ids=given.source_ids,
    )

    assert parsed.fields["facets"][0]["sources"] == [hostile.doc_id]


def test_an_id_that_looks_like_another_ones_escaped_form_takes_nothing_from_it() -> None:
    ids = ("R&D", "R&amp;D", "plain")
    answer: dict[str, Any] = {"rationale": "", "answer": "x", "citation": ["R&amp;D", "plain"]}

    parsed = parse_answer(json.dumps(answer), "stop", output="answer", source_ids=ids)

    assert parsed.fields["citation"] == ["plain"]


# ---- tenants


def test_nothing_of_one_tenant_is_in_a_prompt_of_another() -> None:
    def inputs(tenant: str, word: str) -> list[NodeInput]:
        documents = [document(f"d{i}", text=f"City: {word} {i}") for i in range(30)]
        below = [
            child(f"{tenant}/s1/p{i}", summary=word, facets=(facet("city", word),),
                  question_answers=(pair("Where?", word),))
            for i in range(30)
        ]  # fmt: skip
        same = {"tenant_id": tenant, "node_id": "same/id"}
        return [node(*documents, **same), node(*below, *documents, **same)]

    small = shipped_settings("hiring").budgets.model_copy(update={"max_input_tokens": 2500})
    prompts = NodePrompts.load(SETTINGS.model_copy(update={"budgets": small}))
    words = {"acme": "Kittila", "globex": "Sodankyla"}
    told: dict[str, list[Request]] = {tenant: [] for tenant in words}
    for at in range(2):
        for tenant, word in words.items():
            whole = inputs(tenant, word)[at]
            parts = [group.node for group in split_input(whole, prompts)]
            told[tenant] += [prompts.request(part, "fused") for part in (whole, *parts)]

    for tenant, other in (("acme", "globex"), ("globex", "acme")):
        assert len(told[tenant]) > 2
        for request in told[tenant]:
            assert words[tenant] in request.user
            assert words[other] not in request.system + request.user + json.dumps(request.payload)
            assert other not in request.user
    hashes = [
        {prompts.request_hash(request, tenant_id=tenant) for request in told["acme"]}
        for tenant in words
    ]
    assert hashes[0].isdisjoint(hashes[1])


def test_queries_of_two_tenants_share_nothing() -> None:
    def asked(tenant: str, word: str) -> str:
        hit = Hit(node_id=tenant, level="contract", view="summary", score=1.0, text=word)
        context = replace(
            context_of(BEFORE), query=word, facets=(), questions=(), summaries=(hit,), evidence=()
        )
        return "".join(r.system + r.user for r in query_requests(context, SETTINGS))

    first, second = asked("acme", "Kittila"), asked("globex", "Sodankyla")

    assert "Kittila" in first
    assert "Kittila" not in second
    assert "acme" not in second
    assert first.replace("Kittila", "Sodankyla").replace("acme", "globex") == second


# ---- the escaping itself

PIECES = st.sampled_from(
    ["<", "</", "＜", "‹", "document", "child", ">", "&", "amp;", "lt;", "#60;", "#x3c", "#65308;",
     "\u200b", "\u00ad", " ", "\n", "s", "|", "im_end", "[", "/", "INST", "]", "é", "東", "$x", "_"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14).map("".join))
def test_any_text_comes_back_whole_and_closes_nothing(text: str) -> None:
    shown = escape_text(text)

    assert unescape_text(shown) == text
    assert read_elements(f"<document>{shown}</document>")[0].body == shown
    assert chat_markup(shown) == []


def test_plain_text_stays_as_it_is() -> None:
    given = HOSTILE["nothing to see"].text

    assert escape_text(given) == given
    assert one_line(given) == given
    assert "document" in TAG_NAMES
