"""A parent's facet in words: `hybrid in 7 of 9 projects; on-site since March 2026`."""

import re
from collections.abc import Sequence

from hltm_spark.models.extractive.dates import day_words, month_words
from hltm_spark.models.extractive.rollup import Counted, Rolled
from hltm_spark.models.extractive.wording import joined, plural

_MAX_LISTED = 8
_MAX_SINGLE = 3
_MAX_VARIED = 5
_NUMBER = re.compile(r"\d[\d.,\u00a0' ]*")


def counted_text(rolled: Rolled, *, noun: str, level: str, count: int) -> str:
    """Return the facet in words: what its own documents changed, the counts, what they also say.

    Args:
        rolled: The facet.
        noun: What is counted: the leaf level's name.
        level: The parent's level, for what its own documents say.
        count: Leaves below the parent, as far as known.
    """
    whose = f"the {level}'s own documents"
    own = _own_text(rolled, whose)
    top = next((v for v in rolled.values if v.children), None)
    is_same = bool(top and top.own and rolled.own and not rolled.own.earlier and not rolled.is_list)
    below = _children_text(rolled, noun, count, f" and in {whose}" if is_same else "")
    if not below or not own or is_same:
        return below or own
    is_first = rolled.own_is_newest or rolled.is_list or (rolled.own and rolled.own.earlier)
    return f"{own}; {below}" if is_first else f"{below}; {own}"


def short_text(rolled: Rolled) -> str:
    """Return the facet for a one-sentence summary: `work mode hybrid (7 of 9)`."""
    if rolled.is_list:
        return f"{rolled.name} {joined([v.value for v in rolled.values[:4]])}"
    top = rolled.values[0]
    if rolled.own_is_newest and rolled.own:
        return f"{rolled.name} {rolled.own.values[0].value}"
    counts = f" ({top.leaves} of {rolled.total})" if rolled.total > 1 and top.leaves else ""
    return f"{rolled.name} {top.value}{counts}"


def _children_text(rolled: Rolled, noun: str, count: int, note: str) -> str:
    kept = [v for v in rolled.values if v.children]
    if not kept:
        return _varied(rolled, noun)
    if rolled.total < 2:
        return joined([v.value for v in kept]) + note
    change = rolled.change
    changed = change.counted if change else None
    listed = [v for v in kept if v is not changed] or kept
    limit = _MAX_LISTED if rolled.is_list else _MAX_SINGLE
    comma = "; " if any("," in v.value for v in listed[:limit]) else ", "
    first = _first(listed[0], rolled, noun, count) + note
    text = comma.join([first, *(f"{v.value} in {v.leaves}" for v in listed[1:limit])])
    if change is None:
        return text
    if change.is_lasting:
        return f"{text}; {change.counted.value} since {month_words(change.since)}"
    return f"{text}; most recently {change.counted.value} ({month_words(change.counted.latest)})"


def _first(value: Counted, rolled: Rolled, noun: str, count: int) -> str:
    """Return the most frequent value with its count: `hybrid in 7 of 9 projects`."""
    nouns = plural(noun, rolled.total)
    if value.leaves < rolled.total:
        return f"{value.value} in {value.leaves} of {rolled.total} {nouns}"
    if rolled.total < count:
        return f"{value.value} in all {rolled.total} {nouns} that state it"
    return f"{value.value} in {'both' if rolled.total == 2 else f'all {rolled.total}'} {nouns}"


def _varied(rolled: Rolled, noun: str) -> str:
    """Return that every child says something else, with the range where values are numbers."""
    values = [v for v in rolled.others if v.children]
    if not values:
        return ""
    head = f"varies over {rolled.total} {plural(noun, rolled.total)}: "
    numbers = [(number, v.value) for v in values if (number := _first_number(v.value)) is not None]
    if len(numbers) == len(values) and len(values) > 2 and not rolled.is_list:
        low, high = min(numbers), max(numbers)
        return f"{head}from {low[1]} to {high[1]}"
    return head + _some([v.value for v in values])


def _some(values: Sequence[str]) -> str:
    shown = list(values[:_MAX_VARIED])
    return joined(
        [*shown, f"{len(values) - len(shown)} more"] if len(values) > len(shown) else shown
    )


def _first_number(value: str) -> float | None:
    match = _NUMBER.search(value)
    if match is None:
        return None
    digits = re.sub(r"[,\u00a0' ]", "", match[0]).rstrip(".")
    try:
        return float(digits)
    except ValueError:
        return None


def _own_text(rolled: Rolled, whose: str) -> str:
    """Return what the parent's own documents say, with the day where it is known."""
    own = rolled.own
    if own is None:
        return ""
    day = day_words(own.values[0].since)
    if own.is_list or not own.earlier:
        is_alone = not rolled.total
        values = ", ".join(v.value for v in own.values)
        return values if is_alone else f"{values} by {whose}"
    since = f" since {day}" if day else ""
    earlier = ", ".join(v.value for v in own.earlier)
    source = f"by {whose}; " if rolled.total else ""
    return f"{own.values[0].value}{since} ({source}earlier: {earlier})"
