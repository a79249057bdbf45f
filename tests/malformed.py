"""Answers as models really write them, made from right ones by damage that a seed decides."""

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from hltm_spark.core.prompts import OUTPUTS

IDS = ("doc-1", "doc-2", "R&D/3")
WRONG_IDS = ["doc-9", "T2/P-7", "R&D", "doc", "", None, 7, ["doc-1"], {"id": "doc-8"}, True]
MAX_QUESTIONS = 10
WORDS = ("kittila", "sodankyla", "reindeer", "boiler", "snowplough")
"""Words of the right answers' texts, which no error may repeat."""

_ANSWER: dict[str, Any] = {
    "facets": {
        "city": {"value": "Kittila", "sources": ["doc-1"]},
        "skills": {"value": ["boiler {x}", "Go"], "sources": ["doc-1", "R&D/3"]},
        "pay": 5,
        "remote": True,
        "unknown": None,
    },
    "rationale": 'It\'s said "twice" in {reindeer} } and [boiler], with a \\ in it.',
    "question_answers": [
        {"question": "Where's it?", "answer": 'In Kittila, "north".', "sources": ["doc-1"]},
        {"question": "How many reindeer?", "answer": "Two, it's said.", "sources": []},
    ],
    "summary": "First a {boiler} and } here [doc-1].\n\nIt's \"odd\": 'snowplough', and 東京 long.",
    "one_sentence_summary": "The snowplough, it's {done} in Sodankyla.",
    "answer": 'In Sodankyla {north}, a 5" boiler.',
    "citation": ["doc-1", "R&D/3"],
}
RIGHT: dict[str, dict[str, Any]] = {
    output: {key: _ANSWER[key] for key in keys} for output, keys in OUTPUTS.items()
}
"""A right answer for each output."""

STYLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "one line": json.dumps,
    "indented": lambda a: json.dumps(a, indent=2, ensure_ascii=False),
    "fenced": lambda a: f"Sure, here:\n```json\n{json.dumps(a, indent=2)}\n```\nThat's {{it}}.",
    "in Python": repr,
    "with commas": lambda a: re.sub(r"\n( *)([}\]])", r",\n\1\2", json.dumps(a, indent=1)),
    "with comments": lambda a: json.dumps(a, indent=1).replace("{\n", "{ // so\n # and\n /* x */"),
    "bare names": lambda a: re.sub(r'\n( *)"(\w+)":', r"\n\1\2:", json.dumps(a, indent=1)),
    "thinking first": lambda a: (
        f"<think>Perhaps {json.dumps(dict.fromkeys(a, 'a draft'))}? No, a {{</think>\n"
        f"{json.dumps(a)}"
    ),
    "tag swallowed": lambda a: f"Is it {json.dumps(a)[:60]}? Yes.</think>{json.dumps(a)}",
}
"""Ways in which an answer is written that can all be read."""

ENDED = ("stop", "STOP", "end_turn", "eos")
REFUSED_REASONS = ("length", "LENGTH", "max_tokens", "max-tokens", "model_length",
                   "incomplete", "content_filter", "Content-Filter", "SAFETY", "recitation",
                   "refusal")  # fmt: skip
OTHER_REASONS = ("", "tool_calls", "function_call", "error", "abort", "unknown", "stop ", "null")

Case = tuple[str, str]
"""Text and finish reason."""


def cases(kind: str, output: str, count: int) -> Iterator[Case]:
    """Yield answers that are damaged in one way, always the same ones."""
    for number in range(count):
        yield KINDS[kind](random.Random(f"{kind} {output} {number}"), RIGHT[output])


def _styled(rng: random.Random, answer: dict[str, Any]) -> str:
    return STYLES[rng.choice(sorted(STYLES))](answer)


def _cut(rng: random.Random, text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return raw[: rng.randrange(len(raw) + 1)].decode("utf-8", rng.choice(["ignore", "replace"]))


def _drop(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randint(1, 6) :]


def _repeat(rng: random.Random, text: str) -> str:
    at, size = rng.randrange(len(text) + 1), rng.choice([1, 1, 2, 40])
    return text[: at + size] + text[at:]


def _swap(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]


def _tokens(rng: random.Random, text: str) -> str:
    tokens = re.findall(r"\w+|\s+|.", text)
    for _ in range(rng.randint(1, 4)):
        at, to = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        change = rng.choice(["drop", "repeat", "swap", "move"])
        if change == "drop":
            tokens[at] = ""
        elif change == "repeat":
            tokens[at] *= rng.choice([2, 3, 50])
        elif change == "swap":
            tokens[at], tokens[to] = tokens[to], tokens[at]
        else:
            tokens.insert(to, tokens[at])
    return "".join(tokens)


def _strange(rng: random.Random, text: str) -> str:
    made = list(text)
    for _ in range(rng.randint(1, 8)):
        made.insert(rng.randrange(len(made) + 1), rng.choice(_STRANGE))
    return "".join(made)


_STRANGE = [*"{}[]\"',:\\/#<>`", "\x00", "\x1b", "\ud800", "\udfff", "\\ud83d", "\u2028", "\u202e",
            "\ufeff", "\u200b", "\\u0000", "\\x", "\\N", "\r", "NaN", "//", "/*", "```",
            "</think>", "<think>", "{{", "}}", '"}', '",', "null", "-", "1e999",
            "“", "‘", "：", "，"]  # fmt: skip
_TEXT_DAMAGE = (_cut, _drop, _repeat, _swap, _tokens, _strange)


def _wrapped(rng: random.Random, answer: dict[str, Any]) -> str:
    text = _styled(rng, answer)
    return rng.choice(
        [
            f"```\n{text}\n```", f"```json\n{text}", f"~~~\n{text}\n~~~", f"`{text}`", f'"{text}"',
            f"[{text}]", f"({text})", f"{{{text}}}", f"<answer>{text}</answer>", f"\ufeff{text}",
            f"The reindeer says: {text} Hope it helps!", f"{text}\nNote: a {{boiler}} }}",
            f"{text}, and so", f"Set {{ as {text}", f"json\n{text}", f"{text}{text}", f"> {text}",
        ]
    )  # fmt: skip


def _thinking(rng: random.Random, answer: dict[str, Any]) -> str:
    draft = rng.choice([json.dumps(answer)[:90], json.dumps(dict.fromkeys(answer, "boiler")), "{"])
    before, after = rng.choice(
        [
            ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<think>", ""),
            ("", "</think>"), ("<think>", "<think>"), ("[THINK]", "[/THINK]"),
            ("<reasoning>", "</reasoning>"), ("<THINK>", "</Think>"), ("Sure. <think>", "</think>"),
            ("<think></think><think>", "</think>"), ("<thought>", ""),
        ]
    )  # fmt: skip
    return f"{before}Perhaps {draft}?{after}{_styled(rng, answer)}"


def _value(rng: random.Random, depth: int = 0) -> Any:
    plain: list[Any] = [
        None, True, False, 0, -1, 2.5, 1e300, float("nan"), float("inf"), -float("inf"), 10**400,
        "", " ", "Kittila", "a\nb", "\ud800", "\x00", "None", "doc-1", "x" * 5000, [], {},
    ]  # fmt: skip
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(plain)
    inner = [_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    names = [
        "value",
        "values",
        "sources",
        "source",
        "name",
        "question",
        "answer",
        "",
        ".",
        " . ",
        "x",
    ]
    return inner if rng.random() < 0.5 else {rng.choice(names): item for item in inner}


def _paths(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value in an answer."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _paths(value[key])


def _wrong_types(rng: random.Random, answer: dict[str, Any]) -> str:
    made = json.loads(json.dumps(answer))
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(list(_paths(made)) or [(made, "x")])
        container[key] = _value(rng)
    return json.dumps(made)


def _wrong_sources(rng: random.Random, answer: dict[str, Any]) -> str:
    def cited() -> Any:
        some = [
            rng.choice([*IDS, *WRONG_IDS, "&#" + "1" * 5000 + ";", "R&amp;D/3"]) for _ in range(4)
        ]
        return rng.choice([some, ", ".join(map(str, some)), some[0], [some]])

    made = json.loads(json.dumps(answer))
    for container, key in list(_paths(made)):
        if key in {"sources", "citation"}:
            container[key] = cited()
    return json.dumps(made)


def _twice(rng: random.Random, answer: dict[str, Any]) -> str:
    text = json.dumps(answer)
    key = rng.choice([*answer, "city", "value", "question", "sources"])
    again = json.dumps(_value(rng))
    return text.replace(f'"{key}":', f'"{key}": {again}, "{rng.choice([key, key.title()])}":')


def _many(rng: random.Random, answer: dict[str, Any]) -> str:
    count = rng.choice([0, 1, MAX_QUESTIONS, 200])
    pairs = [{"question": f"Q{i}?", "answer": "A", "sources": ["doc-1"]} for i in range(count)]
    facets = {f"name {i}": "Kittila" for i in range(count)}
    many = {"question_answers": pairs, "facets": facets, "citation": list(IDS) * count}
    return json.dumps({key: many.get(key, value) for key, value in answer.items()})


def _several(rng: random.Random, answer: dict[str, Any]) -> str:
    other = {key: value for key, value in answer.items() if rng.random() < 0.5}
    parts = [json.dumps(answer), json.dumps(other), "{}", '{"other": 1}', "{x}", "{"]
    return rng.choice(["\n", " ", ",", "\n\nor\n\n"]).join(rng.sample(parts, rng.randint(2, 5)))


def _deep(rng: random.Random, answer: dict[str, Any]) -> str:
    depth, (left, right) = rng.choice([9, 200, 3000, 9000]), rng.choice([("[", "]"), ("{", "}")])
    opening = '{"a":' if left == "{" else "["
    nest = opening * depth + rng.choice(["1", '"Kittila"', ""]) + right * rng.choice([depth, 0, 1])
    key = rng.choice([*answer])
    rest = {name: value for name, value in answer.items() if name != key}
    return f'{{"{key}": {nest}, {json.dumps(rest)[1:]}' if rest else f'{{"{key}": {nest}}}'


def _empty(rng: random.Random, answer: dict[str, Any]) -> str:
    blank: dict[str, Any] = dict.fromkeys(
        answer, rng.choice([None, "", [], {}, " ", [None], [[]], {"": ""}])
    )
    texts = ["", " \n", "null", "{}", "[]", "None", "```json\n```", "{", "}", '"', "\ufeff", "[{}]"]
    return rng.choice([*texts, json.dumps(blank), json.dumps(blank)])


def _numbers(rng: random.Random, answer: dict[str, Any]) -> str:
    number = rng.choice(["1" * 5000, "-" + "9" * 4299, "1e99999", "0x1F", "+5", ".5", "5.", "1_000",
                         "NaN", "-Infinity", "-0", "00", "1e", "--1", "１２"])  # fmt: skip
    key = rng.choice([*answer])
    return json.dumps(answer | {key: 0}).replace(f'"{key}": 0', f'"{key}": {number}')


def _bytes(rng: random.Random, answer: dict[str, Any]) -> str:
    raw = _styled(rng, answer).encode("utf-8", "surrogatepass")
    return rng.choice(
        [repr(raw), raw.decode("latin-1"), raw.decode("utf-16-le", "replace"), str(list(raw))]
    )


def _noise(rng: random.Random, answer: dict[str, Any]) -> str:
    pieces = [*_STRANGE, *(f'"{key}":' for key in answer), '"Kittila"', "Kittila", " ", "doc-1"]
    return "".join(rng.choices(pieces, k=rng.choice([3, 30, 300])))


def _mixed(rng: random.Random, answer: dict[str, Any]) -> str:
    make = rng.choice([_styled, _wrapped, _thinking, _wrong_types, _twice, _several])
    text = make(rng, answer)
    for damage in rng.choices(_TEXT_DAMAGE, k=rng.randint(1, 3)):
        text = damage(rng, text) or " "
    return text


Maker = Callable[[random.Random, dict[str, Any]], str]


def _of_text(damage: Callable[[random.Random, str], str]) -> Maker:
    return lambda rng, answer: damage(rng, _styled(rng, answer))


_MAKERS: dict[str, Maker] = {
    "cut": _of_text(_cut),
    "dropped": _of_text(_drop),
    "repeated": _of_text(_repeat),
    "swapped": _of_text(_swap),
    "tokens": _of_text(_tokens),
    "strange": _of_text(_strange),
    "wrapped": _wrapped,
    "thinking": _thinking,
    "wrong types": _wrong_types,
    "wrong sources": _wrong_sources,
    "twice": _twice,
    "many": _many,
    "several": _several,
    "deep": _deep,
    "empty": _empty,
    "numbers": _numbers,
    "bytes": _bytes,
    "noise": _noise,
    "mixed": _mixed,
}


def _ended(make: Maker) -> Callable[[random.Random, dict[str, Any]], Case]:
    return lambda rng, answer: (make(rng, answer), rng.choice(ENDED))


def _other_end(rng: random.Random, answer: dict[str, Any]) -> Case:
    make = rng.choice([_styled, _styled, *_MAKERS.values()])
    return make(rng, answer), rng.choice([*REFUSED_REASONS, *OTHER_REASONS])


KINDS: dict[str, Callable[[random.Random, dict[str, Any]], Case]] = {
    **{name: _ended(make) for name, make in _MAKERS.items()},
    "other finish reasons": _other_end,
}
"""Makers of (text, finish reason), by the kind of damage."""
