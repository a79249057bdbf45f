"""Facets of a response, whatever their form, as flat name-value pairs.

| written | becomes |
|---|---|
| text | the text on one line |
| number, boolean | canonical text: `12`, `0.5`, `yes`, `no` |
| null, blank text, blank name | dropped, counted as `empty` |
| NaN, infinity | dropped, counted as `not_a_number` |
| list | one value for each item, in order |
| `{"value": v, "sources": [...]}`, also `values`, `source` | v with those sources |
| an object with a value and sources and more | the more is counted as `extra_key` |
| any other object | nested: `name.key` |
| the same key twice | both values, counted as `duplicate_key` |
| the same name and value twice | one value with the sources of both, counted as `duplicate_value` |
| list of `{"name", "value" or "values", "sources"}` | the same as an object |
| list of `"name: value"` | the same as an object |
| anything else, or nested deeper than 8 | dropped, counted as `wrong_shape` |
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hltm_spark.models.citations import KnownSources
from hltm_spark.models.json_text import JsonObject

MAX_DEPTH = 8
_VALUE_KEYS = frozenset({"value", "values"})
_SOURCE_KEYS = frozenset({"source", "sources"})
_UNSTORABLE = re.compile(r"[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean_text(text: str) -> str:
    """Return text that every store takes: no half surrogates, no control but tab and line end."""
    if text.isprintable():
        return text
    return _CONTROL.sub(" ", _UNSTORABLE.sub("\ufffd", text))


def one_line(text: str) -> str:
    """Return clean text with every run of blanks as one."""
    return " ".join(clean_text(text).split())


def scalar_text(value: Any) -> str | None:
    """Return a plain JSON value as canonical text; None for null, NaN, lists and objects."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int):
        return str(value)
    return one_line(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class FacetReader:
    """Reads the facets of one response.

    Attributes:
        sources: Ids that may be cited.
        dropped: Gets the counts of the table above.
    """

    sources: KnownSources
    dropped: Counter[str]
    _found: dict[tuple[str, str], list[str]] = field(default_factory=dict, init=False)

    def read(self, raw: Any) -> list[dict[str, Any]]:
        """Return [{name, value, sources}] sorted by name, then by position in the response."""
        self._read_any(raw)
        items = [{"name": n, "value": v, "sources": s} for (n, v), s in self._found.items()]
        return sorted(items, key=lambda item: str(item["name"]))

    def _read_any(self, raw: Any) -> None:
        if isinstance(raw, dict):
            for key, value in self._pairs(raw):
                self._value(key, value, sources=[], depth=0)
        elif isinstance(raw, list):
            for item in raw:
                self._item(item)
        elif raw is not None:
            self.dropped["wrong_shape"] += 1

    def _item(self, item: Any) -> None:
        """Take one element of a list of facets."""
        if (
            isinstance(item, dict)
            and isinstance(item.get("name"), str)
            and item.keys() & _VALUE_KEYS
        ):
            self._value(item["name"], self._stated(item), sources=self._cited(item), depth=0)
        elif isinstance(item, dict):
            self._read_any(item)
        elif isinstance(item, str) and ":" in item:
            name, _, value = item.partition(":")
            self._value(name, value, sources=[], depth=0)
        else:
            self.dropped["wrong_shape"] += 1

    def _value(self, name: str, value: Any, *, sources: list[str], depth: int) -> None:
        """Take one value of a facet, of any shape."""
        if depth > MAX_DEPTH:
            self.dropped["wrong_shape"] += 1
        elif isinstance(value, list):
            if not value:
                self.dropped["empty"] += 1
            for item in value:
                self._value(name, item, sources=sources, depth=depth + 1)
        elif isinstance(value, dict):
            self._object(name, value, sources=sources, depth=depth + 1)
        else:
            self._scalar(name, value, sources=sources)

    def _object(self, name: str, value: dict[str, Any], *, sources: list[str], depth: int) -> None:
        stated = value.keys() & _VALUE_KEYS
        if stated and (value.keys() & _SOURCE_KEYS or value.keys() == stated):
            self.dropped["extra_key"] += len(value.keys() - _VALUE_KEYS - _SOURCE_KEYS)
            cited = self._cited(value) or sources
            self._value(name, self._stated(value), sources=cited, depth=depth)
            return
        for key, inner in self._pairs(value):
            self._value(f"{name}.{key}", inner, sources=sources, depth=depth)

    def _scalar(self, name: str, value: Any, *, sources: list[str]) -> None:
        name, text = one_line(name).strip(". "), scalar_text(value)
        if not text or not name:
            is_number = isinstance(value, float)
            self.dropped["not_a_number" if is_number and name else "empty"] += 1
            return
        if (name, text) in self._found:
            self.dropped["duplicate_value"] += 1
        known = self._found.setdefault((name, text), [])
        known.extend(source for source in sources if source not in known)

    def _pairs(self, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        pairs = value.pairs if isinstance(value, JsonObject) else list(value.items())
        self.dropped["duplicate_key"] += len(pairs) - len(value)
        yield from pairs

    def _cited(self, item: dict[str, Any]) -> list[str]:
        return self.sources.read(item.get("sources", item.get("source")))

    @staticmethod
    def _stated(item: dict[str, Any]) -> Any:
        return item["values"] if "values" in item else item["value"]
