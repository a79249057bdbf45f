"""Bounded fan-in: which items of a node are read together, and the parts of a long document.

Boundaries are content-defined, by a treap: a run of items that is too big is split at the item
whose id has the highest hash, again and again, until every run fits. So they depend on the items
that are present and on nothing else, and an item that grows moves no boundary outside its run.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from hltm_spark.core.escaping import escape_text
from hltm_spark.core.records import FIRST_PART, Document
from hltm_spark.core.tokens import estimate_tokens

_KEY_DIGITS = 12
_LABEL_DIGITS = 8
_LABEL_TEXT = 64  # characters that name a part: an edit behind them leaves its name
_MAX_PIECE = 128  # characters without any boundary

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SizedItem:
    """One item of a node's prompt.

    Attributes:
        item_id: Unique among the node's items of its kind: children, documents.
        tokens: Its size in the prompt.
        is_document: True for a document, False for a child.
        is_own: True for a group that was written from the node's own documents.
    """

    item_id: str
    tokens: int
    is_document: bool
    is_own: bool = False


def assign_groups(items: Sequence[SizedItem], room: int) -> list[str]:
    """Return the key of each item's group; the items of a group are neighbours and share it.

    A group holds children, own groups or documents, never two of these.

    Args:
        items: In prompt order.
        room: Tokens of one group, at least 1. An item that is bigger stays alone.
    """
    keys: list[str] = []
    for (is_document, _), run in groupby(items, key=lambda i: (i.is_document, i.is_own)):
        same = list(run)
        sizes = [item.tokens for item in same]
        for low, high in _fitting_runs(sizes, [_hash(i.item_id) for i in same], room):
            name = f"{'document' if is_document else 'child'}\x00{same[low].item_id}"
            keys += [_hash(name)[:_KEY_DIGITS]] * (high - low)
    return keys


def split_document(document: Document, limit: int) -> tuple[Document, ...]:
    """Return a document in parts of at most `limit` tokens, or as it is where it fits.

    It is cut at ends of paragraphs, else of sentences, else at blanks, else between characters.
    A part keeps every field, and is labelled by its first words, so that an edit elsewhere leaves
    it as it is. Only blanks at the cuts are lost.

    Args:
        document: A document, or a part of one.
        limit: Tokens of a part's text, as the prompt escapes it.
    """
    text = document.text
    if _tokens(text) <= limit:
        return (document,)
    spans = list(_spans(text, (0, len(text)), limit, _BOUNDARIES))
    texts = [t for low, high in spans if (t := _trimmed(text, low, high))]
    if len(texts) < 2:
        return (replace(document, text="".join(texts)),)
    labels = _labels(texts, is_start=document.is_start)
    return tuple(
        replace(document, text=part, part=label) for part, label in zip(texts, labels, strict=True)
    )


def _fitting_runs(sizes: Sequence[int], priorities: Sequence[str], room: int) -> Iterator[Span]:
    """Yield the runs in order: split at the highest priority, the first item's left out."""
    total = [0, *accumulate(sizes)]
    left, right, root = _cartesian_tree(priorities)
    open_runs = [(root, 0, len(sizes))] if sizes else []
    while open_runs:
        at, low, high = open_runs.pop()
        if at < 0 or total[high] - total[low] <= room:
            yield low, high
        else:
            open_runs += [(right[at], at, high), (left[at], low, at)]


def _cartesian_tree(priorities: Sequence[str]) -> tuple[list[int], list[int], int]:
    """Return the left and right neighbours below each position from 1 on, and the root; -1 none."""
    count = len(priorities)
    left, right = [-1] * count, [-1] * count
    spine: list[int] = []
    for at in range(1, count):
        last = -1
        while spine and priorities[spine[-1]] < priorities[at]:
            last = spine.pop()
        left[at] = last
        if spine:
            right[spine[-1]] = at
        spine.append(at)
    return left, right, spine[0] if spine else -1


def _spans(text: str, span: Span, limit: int, boundaries: Sequence["_Cut"]) -> Iterator[Span]:
    """Yield spans of at most `limit` tokens, the first kind of boundary before the others."""
    pieces = list(pairwise(sorted({span[0], *boundaries[0](text, span), span[1]})))
    texts = [text[low:high] for low, high in pieces]
    sizes = [_tokens(piece) for piece in texts]
    for low, high in _fitting_runs(sizes, _piece_priorities(texts), limit):
        found = pieces[low][0], pieces[high - 1][1]
        if high - low == 1 and sizes[low] > limit and len(boundaries) > 1:
            yield from _spans(text, found, limit, boundaries[1:])
        else:
            yield found


def _piece_priorities(texts: Sequence[str]) -> list[str]:
    """Return a hash for each piece; pieces that say the same are told apart by their number."""
    seen: dict[str, int] = {}
    found = []
    for text in texts:
        number = seen[text] = seen.get(text, 0) + 1
        found.append(_hash(f"{text}\x00{number}"))
    return found


def _labels(texts: Sequence[str], *, is_start: bool) -> list[str]:
    seen: dict[str, int] = {}
    labels = []
    for text in texts:
        label = _hash(text[:_LABEL_TEXT])[:_LABEL_DIGITS]
        number = seen[label] = seen.get(label, 0) + 1
        labels.append(label if number == 1 else f"{label}-{number}")
    if is_start:
        labels[0] = FIRST_PART + labels[0]
    return labels


def _trimmed(text: str, low: int, high: int) -> str:
    part = text[low:high]
    if low > 0:
        part = part.lstrip()
    return part.rstrip() if high < len(text) else part


_Cut = Callable[[str, Span], Iterator[int]]


def _after(pattern: str) -> _Cut:
    compiled = re.compile(pattern)
    return lambda text, span: (m.end() for m in compiled.finditer(text, *span))


def _between_characters(text: str, span: Span) -> Iterator[int]:
    """Yield positions that two characters decide, one in 16 on the average, and no gap too wide."""
    last = span[0]
    for at in range(span[0] + 1, span[1]):
        if at - last >= _MAX_PIECE or (ord(text[at - 1]) * 31 + ord(text[at]) * 7) % 16 == 5:
            last = at
            yield at


def _between_all(_: str, span: Span) -> Iterator[int]:
    yield from range(span[0] + 1, span[1])


_BOUNDARIES: tuple[_Cut, ...] = (
    _after(r"\n[^\S\n]*\n\s*"),
    _after(r"[.!?…][\"'”’)\]]*\s+|[。！？][」』）]*\s*|\n\s*"),
    _after(r"\s+"),
    _between_characters,
    _between_all,
)


def _tokens(text: str) -> int:
    return estimate_tokens(escape_text(text))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
