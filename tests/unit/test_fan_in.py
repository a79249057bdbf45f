import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.core.prompts import item_values
from hltm_spark.core.records import MAX_SOURCES, Child, Document, NodeInput, Views
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.core.views import assemble_views
from hltm_spark.models.extractive import ExtractiveClient
from hltm_spark.models.fan_in import (
    Group,
    item_tokens,
    items_tokens,
    next_input,
    shrink_child,
    split_input,
    to_child,
)
from hltm_spark.models.parsing import parse_answer
from hltm_spark.models.requests import WAVES, NodePrompts
from tests.builders import child, document, facet, node, pair
from tests.unit.models.extractive.asking import hiring


def small(budget: int = 2160, layout: str = "fused", **sections: Any) -> Settings:
    """Return hiring settings with a small budget, which leaves about 1,120 tokens for items."""
    return hiring(budgets={"max_input_tokens": budget}, views={"layout": layout}, **sections)


def large() -> Settings:
    """Return hiring settings under which no node of these tests is grouped."""
    return small(1_000_000)


@dataclass
class Reduced:
    """A node reduced by the extractive provider: its views and the requests of every pass."""

    views: Views
    hashes: list[set[str]] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)


def reduced(given: NodeInput, chosen: Settings) -> Reduced:
    prompts, client = NodePrompts.load(chosen), ExtractiveClient(chosen)
    found = Reduced(views=Views())

    def write(part: NodeInput, *, is_group: bool) -> Views:
        fields: dict[str, Any] = {}
        for wave in WAVES[prompts.layout]:
            summary = fields.get("summary")
            for task in wave:
                request = prompts.request(part, task, summary=summary, is_group=is_group)
                found.hashes[-1].add(prompts.request_hash(request, tenant_id=part.tenant_id))
                found.prompt_tokens.append(
                    estimate_tokens(request.system) + estimate_tokens(request.user)
                )
                text = client.complete(request).text
                parsed = parse_answer(text, "stop", output=task, source_ids=part.source_ids)
                assert parsed.dropped == {}
                fields |= parsed.fields
        return assemble_views(part, fields)

    for _ in range(60):
        found.hashes.append(set())
        groups = split_input(given, prompts)
        if not groups:
            found.views = write(given, is_group=False)
            return found
        check_groups(given, groups)
        results = {g.key: write(g.node, is_group=True) for g in groups if not g.is_single}
        given = next_input(given, groups, results)
    raise AssertionError("the reduction does not end")


def check_groups(given: NodeInput, groups: tuple[Group, ...]) -> None:
    """Every item is in exactly one group, in order."""
    assert [c.node_id for g in groups for c in g.node.children] == [
        c.node_id for c in given.children
    ]
    ids = [d.doc_id for g in groups for d in g.node.documents]
    assert list(dict.fromkeys(ids)) == list(dict.fromkeys(d.doc_id for d in given.documents))
    for group in groups:
        assert (group.node.tenant_id, group.node.node_id) == (given.tenant_id, given.node_id)
        assert not (group.node.children and group.node.documents)
        assert not any(c.is_own for c in group.node.children) or group.node.level
        assert len({c.is_own for c in group.node.children}) <= 1


def project(number: int, **fields: Any) -> Child:
    """Return a project that states a work mode and a location in one document."""
    node_id, source = f"acme/s1/p{number:04}", f"d{number}"
    stated = {"work mode": "hybrid" if number % 4 else "remote", "location": "Oulu"}
    return child(
        node_id,
        latest_at=f"2026-03-{number % 28 + 1:02}T09:00:00Z",
        **{
            "facets": tuple(
                facet(n, v, sources=(source,), documents=(source,)) for n, v in stated.items()
            ),
            "question_answers": (
                pair(f"Who leads p{number}?", f"Person {number}.", documents=(source,)),
            ),
            "summary": f"Project {number} seeks an engineer for the harbour.",
            **fields,
        },
    )


def texts_of(views: Views) -> str:
    return json.dumps(views.to_dict(), ensure_ascii=False)


def real_ids(given: NodeInput) -> set[str]:
    return set(given.source_ids)


def sources_of(views: Views) -> set[str]:
    items = [f.sources for f in views.facets] + [q.sources for q in views.question_answers]
    return {source for cited in items for source in cited}


def test_a_node_that_fits_has_no_groups() -> None:
    given = node(project(1), project(2), document("d"))

    assert split_input(given, NodePrompts.load(hiring())) == ()


@pytest.mark.parametrize("layout", ["fused", "separate"])
def test_many_children_are_reduced_within_the_budget_to_real_ids(layout: str) -> None:
    given = node(*(project(n) for n in range(300)), document("own", text="Visa: yes"))
    chosen = small(layout=layout)

    found = reduced(given, chosen)

    assert len(found.hashes) > 2
    assert max(found.prompt_tokens) <= chosen.budgets.max_input_tokens
    assert sources_of(found.views) <= real_ids(given)
    assert "/~" not in texts_of(found.views)
    assert all(len(f.sources) <= MAX_SOURCES for f in found.views.facets)


def test_support_is_that_of_the_ungrouped_node() -> None:
    given = node(
        *(project(n) for n in range(200)),
        document("own", text="Location: Oulu\nVisa: yes"),
        *(document(f"o{n}", text=f"Note {n}: " + "long words here. " * 30) for n in range(40)),
    )

    at_once = reduced(given, large())
    in_groups = reduced(given, small())

    assert len(at_once.hashes) == 1
    assert len(in_groups.hashes) > 2

    def counts(views: Views) -> dict[tuple[str, str], tuple[int, int]]:
        known = ("location", "work mode", "visa sponsorship")
        return {(f.name, f.value): (f.support, f.total) for f in views.facets if f.name in known}

    assert counts(in_groups.views) == counts(at_once.views)
    assert counts(at_once.views)["location", "Oulu"] == (201, 201)
    location = next(f for f in in_groups.views.facets if f.name == "location")
    assert "own" in location.sources


def test_a_value_that_is_rare_in_every_group_but_frequent_overall_is_kept() -> None:
    given = node(*(project(n, facets=(facet("perk", f"perk {n % 9}"),)) for n in range(120)))

    found = reduced(given, small())

    assert {f.value: f.support for f in found.views.facets} == {
        f.value: f.support for f in reduced(given, large()).views.facets
    }


def test_a_leaf_of_many_documents_counts_as_one_node() -> None:
    given = node(
        *(
            document(
                f"d{n:03}",
                text=f"Location: {'Oulu' if n < 90 else 'Turku'}\nThe team of {n} likes boats.",
                event_time=f"2026-01-01T{n // 60:02}:{n % 60:02}:00Z",
            )
            for n in range(120)
        ),
        node_id="acme/s1/p1",
        level="project",
    )

    found = reduced(given, small())

    stated = [(f.value, f.support, f.total) for f in found.views.facets if f.name == "location"]
    assert stated == [("Turku", 1, 1)]
    assert sources_of(found.views) <= real_ids(given)
    assert "/~" not in texts_of(found.views)
    assert "has 120 documents" in found.views.summary
    assert "likes boats." in found.views.summary
    assert "Location: Turku since 1 January 2026 (earlier: Oulu) [d090, d091, " in (
        found.views.summary
    )


def test_one_changed_child_of_two_thousand_rewrites_one_group_a_pass() -> None:
    given = [project(n) for n in range(2000)]
    changed = replace(given[777], views=replace(given[777].views, summary="Project 777 seeks a "
                                               "gardener for the airport."))  # fmt: skip
    chosen = small(3560)

    before = reduced(node(*given), chosen)
    after = reduced(node(*given[:777], changed, *given[778:]), chosen)

    assert len(after.hashes) == len(before.hashes) > 2
    assert len(before.hashes[0]) > 50
    new = [len(now - was) for now, was in zip(after.hashes, before.hashes, strict=True)]
    assert max(new) == 1


def test_a_new_child_rewrites_few_groups() -> None:
    given = [project(n) for n in range(600)]
    chosen = small(3560)

    before = set().union(*reduced(node(*given), chosen).hashes)
    after = set().union(*reduced(node(*given[:200], project(9000), *given[200:]), chosen).hashes)

    assert len(after - before) < len(after) / 3


def test_a_single_document_of_three_megabytes_is_read_whole() -> None:
    lines = [f"Line {n}: the crane number {n * 7} moved to pier {n % 90}." for n in range(62_000)]
    text = "Location: Oulu\n\n" + "\n\n".join(lines)
    given = node(document("long", text=text), node_id="acme/s1/p1", level="project")
    chosen = small(24_000)
    prompts = NodePrompts.load(chosen)

    groups = split_input(given, prompts)
    tokens = [
        estimate_tokens(r.system) + estimate_tokens(r.user)
        for g in groups
        for _, r in prompts.first_requests(g.node, is_group=True)
    ]

    assert len(text) > 3_000_000
    assert len(groups) > 50
    assert max(tokens) <= 24_000
    assert {d.doc_id for g in groups for d in g.node.documents} == {"long"}


@pytest.mark.parametrize(
    "text",
    ["漢字の文章です。港の仕事。" * 800, "港" * 6000, "Boats are red. Cars are blue. " * 700],
)
def test_a_long_document_ends_as_one_node_on_its_own_id(text: str) -> None:
    given = node(document("東京", text=text), node_id="acme/s1/東京", level="project")
    chosen = small()

    found = reduced(given, chosen)

    assert max(found.prompt_tokens) <= chosen.budgets.max_input_tokens
    assert sources_of(found.views) == {"東京"}
    assert "/~" not in texts_of(found.views)
    assert "has 1 document" in found.views.summary


def test_a_child_as_large_as_the_budget_is_shrunk_and_still_counted() -> None:
    big = project(1, summary="All about cranes. " * 2000)
    given = node(big, *(project(n) for n in range(2, 30)))

    found = reduced(given, small())

    assert max(found.prompt_tokens) <= 2600
    assert next(f for f in found.views.facets if f.name == "location").support == 29


def test_items_that_fit_once_shrunk_need_no_group_call() -> None:
    given = node(project(1, summary="long words " * 3000), project(2))
    prompts = NodePrompts.load(small())

    groups = split_input(given, prompts)

    assert [g.is_single for g in groups] == [True, True]
    assert split_input(next_input(given, groups, {}), prompts) == ()


def test_a_node_that_nothing_makes_smaller_has_no_groups() -> None:
    given = node(*(child(f"acme/s1/{'x' * 4000}{n}") for n in range(3)))
    prompts = NodePrompts.load(small())

    for _ in range(5):
        groups = split_input(given, prompts)
        if not groups:
            return
        given = next_input(given, groups, {})
    raise AssertionError("the reduction does not end")


def test_a_documents_wide_metadata_gives_way() -> None:
    wide = document("d", text="word " * 3000, metadata={"a": "x" * 9000, "b": "kept"})
    given = node(wide, node_id="acme/s1/p1", level="project")
    prompts = NodePrompts.load(small())

    groups = split_input(given, prompts)

    assert {tuple(d.metadata) for g in groups for d in g.node.documents} == {("b",)}
    assert all(
        sum(item_tokens(d, prompts) for d in g.node.documents) <= prompts.room(given)
        for g in groups
    )


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 400), max_size=15),
    st.lists(st.integers(0, 500), max_size=5),
    st.sampled_from(["fused", "separate"]),
)
def test_every_reduction_ends_within_the_budget(
    summaries: list[int], documents: list[int], layout: str
) -> None:
    given = node(
        *(project(n, summary="so it is. " * size) for n, size in enumerate(summaries)),
        *(document(f"o{n}", text="it is so. " * size) for n, size in enumerate(documents)),
    )
    if not given.source_ids:
        return
    chosen = small(1760, layout)

    found = reduced(given, chosen)

    assert max(found.prompt_tokens) <= 2200
    assert sources_of(found.views) <= real_ids(given)
    assert "/~" not in texts_of(found.views)


def test_a_child_is_shrunk_pairs_first_then_facets_of_least_support() -> None:
    prompts = NodePrompts.load(hiring())
    facets = (
        facet("mode", "remote", support=2),
        facet("mode", "hybrid", support=9),
        facet("city", "Oulu", support=1),
    )
    pairs = tuple(pair(f"Question {n}?") for n in range(4))
    given = child("acme/s1/p1", facets=facets, question_answers=pairs, summary="word " * 40)
    full = item_tokens(given, prompts)

    fewer = shrink_child(given, full - 1, prompts).views
    none = shrink_child(given, 60, prompts).views
    cut = shrink_child(given, 40, prompts)

    assert fewer.question_answers == pairs[:3]
    assert fewer.facets == facets
    assert none.question_answers == ()
    assert [f.value for f in none.facets] == ["hybrid", "Oulu"]
    assert cut.views.facets == ()
    assert 0 < len(cut.views.summary) < 200
    assert item_tokens(cut, prompts) <= 40


def test_a_group_becomes_a_child_that_knows_its_size_and_ids() -> None:
    views = Views(summary="s")
    of_children = Group("0123456789ab", node(project(1), project(2)))
    of_documents = Group("ba9876543210", node(document("d1"), document("d2", part="x")))

    below, own = to_child(of_children, views), to_child(of_documents, views)

    assert (below.node_id, below.size, below.is_own) == ("acme/s1/~0123456789ab", 2, False)
    assert below.sources == ("acme/s1/p0001", "acme/s1/p0002")
    assert below.latest_at == "2026-03-03T09:00:00Z"
    assert (own.size, own.is_own, own.sources) == (1, True, ("d1", "d2"))
    assert Child.from_dict(json.loads(json.dumps(own.to_dict()))) == own
    assert to_child(Group("aaaaaaaaaaaa", node(below, below)), views).size == 4


def test_the_tokens_of_a_node_are_those_of_its_items() -> None:
    prompts = NodePrompts.load(small())
    given = node(
        document("d1", text="\n  Two blank ends.  \n\n"),
        document("d2", text="", author="Ines"),
        *[project(number) for number in range(40)],
    )

    assert items_tokens(item_values(given)) == sum(
        item_tokens(item, prompts) for item in (*given.children, *given.documents)
    )


def test_an_ordinary_childs_payload_has_no_group_fields() -> None:
    raw = node(project(1), document("d")).to_dict()

    assert not {"is_group", "size", "is_own", "sources"} & raw["children"][0].keys()
    assert Document.from_dict(document("d", part="x").to_dict()).part == "x"


def test_group_ids_in_texts_become_the_first_real_ids() -> None:
    first = to_child(Group("0123456789ab", node(*map(project, range(5)))), Views(summary="s"))
    second = to_child(Group("ba9876543210", node(project(7))), Views(summary="s"))
    summary = (
        "All [acme/s1/~0123456789ab]. One [acme/s1/~ba9876543210; ~0123456789ab]. "
        "None [acme/s1/~ffffffffffff]. Real [acme/s1/p0001]."
    )

    views = assemble_views(node(first, second), {"summary": summary})

    assert views.summary == (
        "All [acme/s1/p0000, acme/s1/p0001, acme/s1/p0002]. "
        "One [acme/s1/p0007, acme/s1/p0000, acme/s1/p0001]. None. Real [acme/s1/p0001]."
    )


def test_a_cited_group_stands_for_the_sources_of_its_matching_item() -> None:
    stated = facet("mode", "hybrid", sources=("acme/s1/p0001",), documents=("d1",), support=3,
                   total=5)  # fmt: skip
    asked = pair("Where?", sources=("acme/s1/p0002",))
    views = Views(facets=(stated,), question_answers=(asked,), summary="s")
    group = to_child(Group("0123456789ab", node(*map(project, range(9)))), views)
    cited = [group.node_id]
    fields = {
        "facets": [
            {"name": "mode", "value": "Hybrid (3 of 5)", "sources": cited},
            {"name": "other", "value": "x", "sources": cited},
        ],
        "question_answers": [{"question": "where?", "answer": "there", "sources": cited}],
    }

    found = assemble_views(node(group), fields)

    mode, other = found.facets
    assert (mode.value, mode.sources, mode.documents) == ("Hybrid", ("acme/s1/p0001",), ("d1",))
    assert (mode.support, mode.total) == (3, 5)
    assert len(other.sources) == 9
    assert found.question_answers[0].sources == ("acme/s1/p0002",)


def test_own_groups_and_own_documents_count_as_one() -> None:
    views = Views(facets=(facet("visa", "yes", support=1),), summary="s")
    own = [to_child(Group(f"{n:012}", node(document(f"d{n}"))), views) for n in (1, 2)]
    given = node(child("acme/s1/p1", facets=(facet("visa", "yes"),)), *own, document("d3"))

    visa = assemble_views(given, {"facets": [{"name": "visa", "value": "yes"}]}).facets[0]

    assert (visa.support, visa.total) == (2, 2)
    assert visa.sources[0] == "acme/s1/p1"
    assert "d3" in visa.sources


def test_a_groups_request_is_not_that_of_the_whole_node() -> None:
    prompts = NodePrompts.load(hiring())
    given = node(project(1))

    whole = prompts.request(given, "fused")
    group = prompts.request(given, "fused", is_group=True)

    assert group.user == whole.user
    assert group.payload["group"] is True
    assert "group" not in whole.payload
    hashes = {prompts.request_hash(r, tenant_id="acme") for r in (whole, group)}
    assert len(hashes) == 2


def test_the_budget_is_part_of_the_fingerprint_but_not_of_a_request() -> None:
    less, more = NodePrompts.load(small(2660)), NodePrompts.load(small(3560))
    request = less.request(node(project(1)), "fused")

    assert less.fingerprint_of(is_leaf=True) != more.fingerprint_of(is_leaf=True)
    assert less.request_hash(request, tenant_id="t") == more.request_hash(request, tenant_id="t")


@pytest.mark.parametrize("layout", ["fused", "separate"])
def test_a_budget_without_room_names_the_smallest_that_works(layout: str) -> None:
    with pytest.raises(SettingsError, match=r"max_input_tokens must .* got 100$") as error:
        NodePrompts.load(small(100, layout))
    smallest = int(str(error.value).split("at least ")[1].split()[0])

    NodePrompts.load(small(smallest, layout))
    with pytest.raises(SettingsError):
        NodePrompts.load(small(smallest - 1, layout))
