"""Synthetic hiring documents, changes to them, and the calls that a change cannot do without.

Everything follows from numbers and a seed: the same on every machine. What is necessary is computed
from the documents before and after alone, in plain Python, so that it can judge the pipeline.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PROJECTS, SEATS = 50, 20
"""Projects of a seat, and seats of a contract; contracts follow from the number of leaves."""

Keys = tuple[str, ...]
"""Contract, seat and project, as far down as a node is."""
Documents = Mapping[str, "HiringDocument"]
"""A state of the corpus, by doc_id."""

_CITIES = ("Oulu", "Porto", "Leeds", "Gdynia", "Lyon", "Tartu", "Graz", "Bilbao")
_MODES = ("on-site", "hybrid", "remote")
_SKILLS = ("Go", "Kafka", "SQL", "Rust", "Python", "Terraform", "Spark", "React")
_SENTENCES = (
    "The team sits together on the third floor and answers for one service.",
    "The last opening of this kind stayed open for eleven weeks.",
    "Whoever comes will be on call one week in six, with a day off afterwards.",
    "The manager reads every letter and wants no test at home.",
    "Two candidates withdrew because nobody wrote to them in time.",
    "A gap in the CV is read as a gap, and nobody asks about it.",
)


@dataclass(frozen=True, slots=True)
class HiringDocument:
    """One document of a project.

    Attributes:
        doc_id: Unique in its contract; here in the whole corpus.
        keys: The leaf that it belongs to.
    """

    doc_id: str
    keys: Keys
    text: str


def make_documents(leaves: int, *, seats: int = SEATS, projects: int = PROJECTS) -> Documents:
    """Return one document for each of so many leaves; the last contract and seat may be smaller."""
    made: dict[str, HiringDocument] = {}
    for number in range(leaves):
        seat, project = divmod(number, projects)
        contract, seat = divmod(seat, seats)
        keys = (f"contract-{contract:03}", f"seat-{seat:02}", f"project-{project:05}")
        doc_id = f"brief-{number:06}"
        made[doc_id] = HiringDocument(doc_id, keys, _text(doc_id))
    return made


def change(documents: Documents, count: int, *, seed: int) -> Documents:
    """Return the state after so many changes: edits, inserts, deletes and moves in equal shares.

    Every change meets a document of its own; of a rest the edits come first. A moved document goes
    to a leaf of another seat of its contract, where there is a document already.
    """
    chooser = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    chosen = chooser.sample(sorted(documents), min(count, len(documents)))
    after = dict(documents)
    for number, doc_id in enumerate(chosen):
        document, kind = documents[doc_id], number % 4
        if kind == 0:
            after[doc_id] = replace(document, text=_text(f"{doc_id} {seed}"))
        elif kind == 1:
            contract, seat, project = document.keys
            keys = (contract, seat, f"{project}-{seed}")
            after[f"{doc_id}-{seed}"] = HiringDocument(
                f"{doc_id}-{seed}", keys, _text(f"{doc_id} {seed}")
            )
        elif kind == 2:
            del after[doc_id]
        else:
            after[doc_id] = replace(document, keys=_elsewhere(document.keys, documents, chooser))
    return after


def edit(documents: Documents, count: int, *, seed: int) -> Documents:
    """Return the state after so many documents got another text."""
    chosen = random.Random(seed).sample(sorted(documents), count)  # noqa: S311 - as above
    edited = {d: replace(documents[d], text=_text(f"{d} {seed}")) for d in chosen}
    return {**documents, **edited}


def write_changes(before: Documents, after: Documents, file: Path) -> int:
    """Write the rows that turn one state into the other, for `hltm ingest`; return how many."""
    rows = [_row(d) for doc_id, d in after.items() if before.get(doc_id) != d]
    rows += [
        {"contract": d.keys[0], "doc_id": doc_id, "op": "delete"}
        for doc_id, d in before.items()
        if doc_id not in after
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return len(rows)


@dataclass(frozen=True, slots=True)
class Necessary:
    """The nodes that a change makes stale and that still have a document.

    Attributes:
        leaves: Leaves whose documents differ.
        ancestors: Distinct nodes above leaves whose documents differ, gone leaves included.
    """

    leaves: int
    ancestors: int

    @property
    def calls(self) -> int:
        """Calls, at one a node."""
        return self.leaves + self.ancestors


def necessary_calls(before: Documents, after: Documents) -> Necessary:
    """Return what has to be written between two states if no answer repeats and none is wide."""
    old, new = _by_leaf(before.values()), _by_leaf(after.values())
    changed = {keys for keys in old.keys() | new.keys() if old.get(keys) != new.get(keys)}
    above, alive = _above(changed), _above(new)
    return Necessary(leaves=len(changed & new.keys()), ancestors=len(above & alive))


def _by_leaf(documents: Iterable[HiringDocument]) -> dict[Keys, set[HiringDocument]]:
    found: dict[Keys, set[HiringDocument]] = {}
    for document in documents:
        found.setdefault(document.keys, set()).add(document)
    return found


def _above(leaves: Iterable[Keys]) -> set[Keys]:
    return {keys[:length] for keys in leaves for length in range(1, len(keys))}


def _elsewhere(keys: Keys, documents: Documents, chooser: random.Random) -> Keys:
    """Return a leaf of another seat of the same contract; of the same seat if there is no other."""
    leaves: Sequence[Keys] = [d.keys for d in documents.values() if d.keys[0] == keys[0]]
    others = [leaf for leaf in leaves if leaf[1] != keys[1]]
    return chooser.choice(others or [leaf for leaf in leaves if leaf != keys] or [keys])


def _row(document: HiringDocument) -> dict[str, str]:
    contract, seat, project = document.keys
    return {
        "contract": contract,
        "seat": seat,
        "project": project,
        "doc_id": document.doc_id,
        "text": document.text,
        "kind": "intake_call",
        "event_time": "2026-03-02T08:00:00Z",
    }


def _text(name: str) -> str:
    """Return a short brief that a name decides."""
    chooser = random.Random(name)  # noqa: S311 - as above
    low = chooser.randrange(40, 90)
    return "\n".join(
        [
            f"Brief {name}. {' '.join(chooser.sample(_SENTENCES, 3))}",
            f"Location: {chooser.choice(_CITIES)}",
            f"Work mode: {chooser.choice(_MODES)}",
            f"Salary range: EUR {low},000-{low + 12},000",
            f"Must-have skills: {', '.join(chooser.sample(_SKILLS, 3))}",
            f"Start date: 2026-{chooser.randrange(1, 13):02}-01",
        ]
    )
