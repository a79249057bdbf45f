"""Which of the ids that a model cites were really in its prompt.

Only ids of the prompt are kept; any other is dropped and counted as `unknown_source`, so that an
invented id, or one of another tenant, is never stored; nor is one that could mean two. A cited id
is matched as written, then with only these taken off, in this order: blanks around it, HTML
entities (prompts escape ids), brackets and quotes around it, and a leading `document:`, `doc:`,
`child:`, `node:`, `source:` or `id:` (also with `=` or `#`). Case is significant, and a part of an
id is not the id.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hltm_spark.core.escaping import escape_attribute

_AROUND = " \t\r\n[](){}<>\"'`"
_PREFIX = re.compile(r"^(?:document|doc|child|node|source|id)s?\s*[:=#]\s*", re.IGNORECASE)
_BETWEEN = re.compile(r"[,;\n]")


class KnownSources:
    """The ids of one prompt."""

    def __init__(self, ids: Sequence[str], *, dropped: Counter[str]) -> None:
        """Remember the ids; `dropped` gets the count of unknown ones."""
        self._ids = frozenset(ids)
        shown = {escape_attribute(known): known for known in ids}
        # an id that is what the prompt shows of another one names neither
        self._ambiguous = frozenset(k for k in ids if shown.get(k, k) != k)
        self._dropped = dropped
        on_one_line: dict[str, list[str]] = {}
        for known in ids:
            on_one_line.setdefault(" ".join(known.split()), []).append(known)
        # a prompt shows an id on one line; two ids that look the same there match neither
        self._shown = {shown: found[0] for shown, found in on_one_line.items() if len(found) == 1}

    def read(self, raw: Any) -> list[str]:
        """Return the known ids among what was cited, each once, in the order given.

        Args:
            raw: A string (one id, or several between commas, semicolons or line ends), a number,
                a list of those, or None.
        """
        found: dict[str, None] = {}
        for cited in _flat(raw):
            whole = self._match(cited)
            pieces = [cited] if whole else _BETWEEN.split(cited.strip(_AROUND))
            for piece in pieces:
                known = whole or self._match(piece)
                if known:
                    found[known] = None
                elif piece.strip(_AROUND):
                    self._dropped["unknown_source"] += 1
        return list(found)

    def _match(self, cited: str) -> str | None:
        candidate = cited
        for step in (_same, str.strip, _unescaped, _bare, _unprefixed, _bare):
            candidate = step(candidate)
            if candidate in self._ambiguous:
                return None
            if candidate in self._ids:
                return candidate
            if candidate in self._shown:
                return self._shown[candidate]
        return None


def _same(text: str) -> str:
    return text


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character reference of more digits than Python reads
        return text


def _bare(text: str) -> str:
    return text.strip(_AROUND)


def _unprefixed(text: str) -> str:
    return _PREFIX.sub("", text)


def _flat(raw: Any) -> Iterator[str]:
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, int) and not isinstance(raw, bool):
        yield str(raw)
    elif isinstance(raw, list):
        for item in raw:
            if isinstance(item, dict):
                item = item.get("id")  # noqa: PLW2901  # some models wrap each id
            if not isinstance(item, list):
                yield from _flat(item)
