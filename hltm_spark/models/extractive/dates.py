"""Days in words, and what "yesterday" meant on the day it was written."""

import re
from datetime import date, datetime, timedelta

from hltm_spark.core.text import date_words

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_RELATIVE = re.compile(
    r"\b(?:(?P<day>yesterday|today|tonight|this morning|last night|tomorrow)"
    r"|(?P<which>last|next)\s+(?P<unit>week|weekend|month|year|" + "|".join(_DAYS) + r")(?!['’]s\b)"
    r"|(?P<count>a|two|three|four|five|six|\d{1,2})\s+(?P<span>day|week|month|year)s?\s+ago)\b",
    re.IGNORECASE,
)
_OFFSETS = {"yesterday": -1, "last night": -1, "tomorrow": 1}
_NUMBERS = {"a": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}


def day_words(time: str) -> str:
    """Return the day of an ISO time in words, `4 March 2026`; empty where there is none."""
    return date_words(time) if time else ""


def month_words(time: str) -> str:
    """Return the month of an ISO time in words, `March 2026`; empty where there is none."""
    return day_words(time).partition(" ")[2]


def meant_date(text: str, time: str) -> tuple[str, str]:
    """Return the first relative expression of a text and, in words, the time it means.

    Both are empty where the text has none or nothing is known of when it was said.

    Args:
        text: "I went there yesterday".
        time: When it was said, as ISO time.
    """
    match = _RELATIVE.search(text)
    try:
        said = datetime.fromisoformat(time).date()
    except ValueError:
        return "", ""
    meant = _meant(match, said) if match else ""
    return (match[0].casefold(), meant) if match and meant else ("", "")


def _meant(match: re.Match[str], said: date) -> str:
    if match["day"]:
        return _words(said + timedelta(days=_OFFSETS.get(match["day"].casefold(), 0)))
    if match["which"]:
        sign = -1 if match["which"].casefold() == "last" else 1
        return _near(said, match["unit"].casefold(), sign)
    amount = match["count"].casefold()
    return _ago(said, int(_NUMBERS.get(amount) or amount), match["span"].casefold())


def _near(said: date, unit: str, sign: int) -> str:
    if unit in _DAYS:
        distance = (_DAYS.index(unit) - said.weekday()) % 7 or 7
        return _words(said + timedelta(days=distance if sign > 0 else distance - 7 or -7))
    if unit == "year":
        return str(said.year + sign)
    if unit == "month":
        return _month(said, sign)
    side = "before" if sign < 0 else "after"
    return f"the {unit} {side} {_words(said)}"


def _ago(said: date, amount: int, span: str) -> str:
    if span == "year":
        return str(said.year - amount)
    if span == "month":
        return _month(said, -amount)
    return _words(said - timedelta(days=amount * (7 if span == "week" else 1)))


def _month(said: date, offset: int) -> str:
    year, month = divmod(said.year * 12 + said.month - 1 + offset, 12)
    return month_words(date(year, month + 1, 1).isoformat()) if year > 0 else ""


def _words(day: date) -> str:
    return date_words(day.isoformat())
