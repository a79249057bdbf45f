"""English phrases that views are built with; every name and value in them is the inputs' own."""

import re
from collections.abc import Iterable, Sequence

from hltm_spark.core.config import DeclaredFacet
from hltm_spark.core.tree import to_keys

TITLE_NAMES = ("title", "name", "topic", "subject")
_PEOPLE = frozenset({"manager", "lead", "recruiter", "contact", "owner", "sponsor", "maintainer"})
_BECAUSE = {"accepted because": "accepted", "rejected because": "rejected"}


def key_label(node_id: str, level: str) -> str:
    """Return a node's name from its key: `project 007`, but `seat-42` where the key says it."""
    key = to_keys(node_id)[-1] if node_id else ""
    if not key or key.casefold().startswith(level.casefold()):
        return key or level
    return f"{level} {key}"


def titled(label: str, title: str) -> str:
    """Return a node's name with its title: `project 007 (Data Engineer)`."""
    return f"{label} ({title})" if title and title.casefold() not in label.casefold() else label


def plural(noun: str, count: int) -> str:
    """Return a noun in the number that fits: `1 project`, `9 projects`, `2 policies`."""
    if count == 1:
        return noun
    if noun.endswith("y") and not noun.endswith(("ay", "ey", "oy")):
        return f"{noun[:-1]}ies"
    return noun if noun.endswith("s") else f"{noun}s"


def joined(items: Sequence[str]) -> str:
    """Return items as prose: `a, b and c`; with semicolons where an item has a comma."""
    if len(items) < 2:
        return "".join(items)
    comma = "; " if any("," in item for item in items) else ", "
    return comma.join(items[:-1]) + f"{';' if comma == '; ' else ''} and {items[-1]}"


def cited(text: str, ids: Iterable[str], *, limit: int = 5) -> str:
    """Return a statement with the ids that it stands on, in brackets."""
    shown = list(dict.fromkeys(ids))
    more = ", …" if len(shown) > limit else ""
    return f"{text} [{', '.join(shown[:limit])}{more}]" if shown else text


def sentence(text: str) -> str:
    """Return text that starts and ends like a sentence."""
    text = text.strip()
    ended = (
        text if not text or text.endswith((".", "!", "?", "。", "！", "？", "…")) else f"{text}."
    )
    return ended[:1].upper() + ended[1:]


def is_plural(name: str) -> bool:
    """Return True for a facet name whose head is a plural: `languages`, `years of experience`."""
    head = name.partition(" of ")[0]
    return head.endswith("s") and not head.endswith(("ss", "us", "is"))


def leaf_question(name: str, label: str, declared: DeclaredFacet | None) -> str:
    """Return the question that a leaf's facet answers."""
    if name in _BECAUSE:
        return f"Why was somebody {_BECAUSE[name]} for {label}?"
    if declared and (declared.positive or declared.negative):
        return f"Is there {name} for {label}?"
    if name.rsplit(maxsplit=1)[-1] in _PEOPLE:
        return f"Who is the {name} of {label}?"
    verb = "are" if is_plural(name) else "is"
    return f"What {verb} the {name} of {label}?"


def parent_question(name: str, label: str, declared: DeclaredFacet | None) -> str:
    """Return the question that a parent's facet answers."""
    if name in _BECAUSE:
        return f"Why are candidates {_BECAUSE[name]} at {label}?"
    if declared and (declared.positive or declared.negative):
        return f"Is there usually {name} at {label}?"
    if name.rsplit(maxsplit=1)[-1] in _PEOPLE:
        return f"Who is usually the {name} at {label}?"
    if is_plural(name):
        return f"What are the most frequent {name} at {label}?"
    return f"What is the typical {name} at {label}?"


def hinted_question(pattern: str, label: str, level: str, *, at: str) -> str:
    """Return a hinted question that names the node: at "{node}", at "this seat", or at its end."""
    text = " ".join(pattern.split()).rstrip("?？ ")
    named, count = re.subn(
        rf"[{{<$]+(?:node|level|{re.escape(level)}|x|name)[}}>]*|\b(?:this|the|a|an)\s+{re.escape(level)}\b",
        lambda _: label,
        text,
        flags=re.IGNORECASE,
    )
    if count or label.casefold() in text.casefold():
        return f"{named}?"
    return f"{text} {at} {label}?"
