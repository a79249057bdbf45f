"""Sequences of commits and kills, drawn over a model of the documents; pure, without Spark."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.builders import raw_document

OLD, EARLY, LATE = "1999-12-31T23:59:59Z", "2026-03-04T09:00:00Z", "2026-03-05T09:00:00Z"
TEXTS = (
    "Location: Turku\nWork mode: hybrid",
    "Location: Oulu",
    "Location: Turku\n\n",  # other bytes than the first, and some equal views
    "Headcount: 3\nThe manager never sponsors visas.",
    "Salary band: 4000\nLocation: Espoo\n" + "A long note about the role. " * 40,
)

Row = dict[str, Any]
Key = tuple[str, str]
"""tenant, doc_id."""


@dataclass(frozen=True)
class Step:
    """Commits, a run that may be killed, then the commits behind it, and a run that ends."""

    commits: Sequence[Sequence[Row]] = ()
    kill: str = ""
    later: Sequence[Sequence[Row]] = ()


def row(tenant: str, doc_id: str, place: str, text: str, time: str | None = EARLY) -> Row:
    """Return a document at a place: `seat/project`, `seat`, or nothing for the contract's own."""
    seat, project = (*filter(None, place.split("/")), None, None)[:2]
    fields = {"contract": tenant, "seat": seat, "project": project}
    return raw_document(doc_id, **fields, text=text, event_time=time)


def gone(tenant: str, doc_id: str) -> Row:
    return {"contract": tenant, "doc_id": doc_id, "op": "delete"}


def apply(model: dict[Key, Row], rows: Sequence[Row]) -> None:
    for one in rows:
        key = (one["contract"], one["doc_id"])
        if one.get("op") == "delete":
            model.pop(key, None)
        else:
            model[key] = one


START = [
    *(row("acme", f"d{n}", f"s1/p{n}", TEXTS[n % len(TEXTS)]) for n in range(8)),
    row("acme", "own", "s1", TEXTS[3], None),
    row("globex", "d1", "s1/p1", TEXTS[0]),
    row("globex", "d2", "s1/p2", TEXTS[1], LATE),
]
"""A seat that is wide for the budget, and a tenant with equal keys."""

PLAN = (
    Step([START]),
    Step(
        commits=[
            [
                row("acme", "d1", "s1/p1", TEXTS[0]),  # edit
                row("acme", "d2", "s2/p9", TEXTS[2]),  # move: its leaf disappears
                gone("acme", "d3"),
                row("acme", "d4", "s1", TEXTS[4]),  # to the seat itself
                row("acme", "late", "s1/p5", TEXTS[3], OLD),
            ]
        ],
        kill="some answers journalled",
        later=[
            [row("acme", "d1", "s1/p1", TEXTS[4]), row("acme", "d6", "s1/p6", TEXTS[1], LATE)],
            [row("acme", "d1", "s1/p1", TEXTS[3], None)],
        ],
    ),
    Step(),
    Step(
        commits=[
            [gone("globex", "d1"), gone("globex", "d2")],
            [row("acme", "d5", "", TEXTS[0]), row("acme", "d1", "s1/p1", TEXTS[1])],  # a revert
        ],
        kill="memory merged",
    ),
)


@st.composite
def plans(draw: st.DrawFn, kills: Sequence[str]) -> list[Step]:
    """Draw three steps after the start; every operation is one that the model allows."""
    random_source = draw(st.randoms(use_true_random=False))
    model: dict[Key, Row] = {}
    past: dict[Key, list[Row]] = {}
    remember(past, model, START)
    steps = [Step([START])]
    for _ in range(3):
        kill = draw(st.sampled_from([*kills, ""]))
        commits: list[list[Row]] = []
        later: list[list[Row]] = []
        for part, counts in ((commits, [1, 2, 0]), (later, [0, 1] if kill else [0])):
            for _ in range(draw(st.sampled_from(counts))):
                names = draw(st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, max_size=4))
                rows = distinct(r for n in names for r in OPERATIONS[n](random_source, model, past))
                remember(past, model, rows)
                part.append(rows)
        steps.append(Step(commits, kill, later))
    return steps


def remember(past: dict[Key, list[Row]], model: dict[Key, Row], rows: Sequence[Row]) -> None:
    apply(model, rows)
    for one in rows:
        if "op" not in one:
            past.setdefault((one["contract"], one["doc_id"]), []).append(one)


def distinct(rows: Iterator[Row]) -> list[Row]:
    """Return the last row of each document: one input may name it only once."""
    return list({(one["contract"], one["doc_id"]): one for one in rows}.values())


Past = Mapping[Key, Sequence[Row]]
Operation = Callable[[random.Random, Mapping[Key, Row], Past], list[Row]]


def insert(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    tenant = source.choice(["acme", "acme", "globex"])
    place = source.choice(["s1/p1", "s1/p7", "s2/p1", "s3/p1", "s2", ""])
    time = source.choice([OLD, EARLY, EARLY, LATE, None])
    return [row(tenant, f"new{source.randrange(9)}", place, source.choice(TEXTS), time)]


def change(source: random.Random, model: Mapping[Key, Row], **choices: Sequence[Any]) -> list[Row]:
    """Return some document with one of the choices for each of the named fields."""
    if not model:
        return []
    old = model[source.choice(sorted(model))]
    return [{**old, **{name: source.choice(values) for name, values in choices.items()}}]


def edit(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, text=TEXTS)


def move(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, seat=["s1", "s2", "s4"], project=["p1", "p3", "p8"])


def lift(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, seat=["s1", "s2", None], project=[None])


def redate(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return change(source, model, event_time=[OLD, EARLY, LATE, None])


def delete(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return [gone(*source.choice(sorted(model)))] if model else []


def remove_tenant(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    tenant = source.choice(["acme", "globex", "globex"])
    return [gone(*key) for key in model if key[0] == tenant]


def revert(source: random.Random, model: Mapping[Key, Row], past: Past) -> list[Row]:
    return [source.choice(past[source.choice(sorted(past))])]


OPERATIONS: Mapping[str, Operation] = {
    one.__name__: one for one in (insert, edit, move, lift, redate, delete, remove_tenant, revert)
}
