"""What a careful model would answer to a prompt: the right answers of `tests.llm_server`."""

import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_ITEM = re.compile(r'<(document|child|memory)\b[^>]*?\bid="([^"]*)"[^>]*>\n(.*?)\n</\1>', re.DOTALL)
_SOURCE_TAG = re.compile(r'<(?:document|child|memory)\b[^>]*?\b(?:node_)?id="([^"]*)"')
_LABELLED = re.compile(r"^(?:- )?([A-Za-z][\w .-]{0,40}): (\S.*)$", re.MULTILINE)
_KEYS = ("facets", "rationale", "question_answers", "summary", "one_sentence_summary", "answer",
         "citation")  # fmt: skip
_NO_FACETS = frozenset({"facets", "summary", "question-answer pairs"})


@dataclass(kw_only=True)
class Call:
    """One request that the server got.

    Attributes:
        path: Path of the URL, with the query.
        body: JSON of the request; {} for GET.
        headers: In lower case.
        status: Status that was sent; 0 for a reset connection.
        number: Position among all requests, from 0.
        sent: Body of the response once all of it was sent; empty where the client had gone.
    """

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    number: int
    status: int = 0
    sent: bytes = b""

    @property
    def system(self) -> str:
        return self._message("system")

    @property
    def user(self) -> str:
        return self._message("user")

    @property
    def prompt(self) -> str:
        return f"{self.system}\n{self.user}"

    @property
    def response_format(self) -> str:
        return str(self.body.get("response_format", {}).get("type", "text"))

    def _message(self, role: str) -> str:
        messages = self.body.get("messages", [])
        return "\n".join(m["content"] for m in messages if m["role"] == role)


def right_answer(call: Call) -> str:
    """Return what a careful model would write for a prompt, as JSON text."""
    keys = wanted_keys(call)
    if "answer" in keys:
        return json.dumps(_query_answer(call), ensure_ascii=False)
    written = _views(call)
    return json.dumps({key: written[key] for key in keys}, ensure_ascii=False)


def wanted_keys(call: Call) -> tuple[str, ...]:
    """Return the response keys that a request wants: from its schema, or else its instructions."""
    schema = call.body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    if properties := schema.get("properties"):
        return tuple(properties)
    instructions = call.system + re.sub(r"<(\w+)\b[^>]*>.*?</\1>", "", call.user, flags=re.DOTALL)
    if is_repair(call):
        named = re.search(r"^Keys: (.*)$", call.user, re.MULTILINE)
        instructions = named[1] if named else instructions
    keys = tuple(key for key in _KEYS if f'"{key}"' in instructions)
    if "citation" not in keys:
        keys = tuple(key for key in keys if key != "answer")  # that of a question-answer pair
    return keys or ("facets",)


def is_repair(call: Call) -> bool:
    """Return True for the request that asks to mend an answer."""
    return "You repair an answer" in call.system


def source_ids(call: Call) -> list[str]:
    """Return the ids that a prompt shows, in order."""
    return [html.unescape(shown) for shown in _SOURCE_TAG.findall(call.user)]


def _views(call: Call) -> dict[str, Any]:
    by_value = _labelled(call)
    node = re.search(r"^Node: (.*)$", call.user, re.MULTILINE)
    level = re.search(r"^Level: (.*)$", call.user, re.MULTILINE)
    name = html.unescape(node[1]) if node else "the node"
    ids = source_ids(call)
    pairs = [
        {"question": f"What is the {label} of {name}?", "answer": value, "sources": sources}
        for (label, value), sources in by_value.items()
    ] or [{"question": f"What is {name} about?", "answer": _first_words(call), "sources": ids}]
    said = "; ".join(
        f"{label} is {value} [{', '.join(s)}]" for (label, value), s in by_value.items()
    )
    short = "; ".join(f"{label} is {value}" for label, value in by_value)
    of_level = level[1] if level else "node"
    return {
        "facets": _facets(call, by_value),
        "rationale": f"{len(ids)} inputs were read.",
        "question_answers": pairs[:10],
        "summary": f"The {of_level} {name}: {said or _first_words(call)}.",
        "one_sentence_summary": f"The {of_level} {name}: {short or _first_words(call)}."[:300],
    }


def _labelled(call: Call) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for _, shown, block in _ITEM.findall(call.user):
        for label, value in _LABELLED.findall(block):
            if label.lower() not in _NO_FACETS:
                found.setdefault((label.lower(), value.strip()), []).append(html.unescape(shown))
    return found


def _facets(call: Call, by_value: dict[tuple[str, str], list[str]]) -> Any:
    if call.response_format == "json_schema":
        return [
            {"name": label, "values": [value], "sources": sources}
            for (label, value), sources in by_value.items()
        ]
    facets: dict[str, list[dict[str, Any]]] = {}
    for (label, value), sources in by_value.items():
        facets.setdefault(label, []).append({"value": value, "sources": sources})
    return {label: values[0] if len(values) == 1 else values for label, values in facets.items()}


def _first_words(call: Call) -> str:
    blocks = _ITEM.findall(call.user)
    words = (blocks[0][2] if blocks else call.user).split()
    return " ".join(words[:12]) or "nothing"


def _query_answer(call: Call) -> dict[str, Any]:
    ids = source_ids(call)
    said = _first_words(call) if ids else "This is not in memory."
    return {"rationale": f"{len(ids)} memories were read.", "answer": said, "citation": ids[:5]}


def with_ids(right: str, ids: Sequence[str]) -> str:
    answer = json.loads(right)
    for pair in answer.get("question_answers", []):
        pair["sources"] = [*ids, *pair["sources"]]
    if "citation" in answer:
        answer["citation"] = [*ids, *answer["citation"]]
    facets = answer.get("facets")
    for item in facets if isinstance(facets, list) else _values(facets or {}):
        item["sources"] = [*ids, *item["sources"]]
    return json.dumps(answer)


def _values(facets: dict[str, Any]) -> list[dict[str, Any]]:
    return [v for value in facets.values() for v in (value if isinstance(value, list) else [value])]


def hashed_vector(content: str, *, dimension: int) -> list[float]:
    """Return a unit vector of a text's words: equal texts are equal, shared words are near."""
    vector = [0.0] * dimension
    for word in re.findall(r"\w+", content.lower()) or [content]:
        digest = hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
        vector[int.from_bytes(digest[:4], "big") % dimension] += 1.0 if digest[4] % 2 else -1.0
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector] if norm else [1.0] + [0.0] * (dimension - 1)
