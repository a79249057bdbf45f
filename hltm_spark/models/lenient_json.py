r"""Almost-JSON as JSON, where there is one way to read it.

| written | becomes |
|---|---|
| a comma before `}` or `]` | nothing |
| no comma between `}` or `]` and what follows | a comma |
| `'text'`, also with `\xe9`, `\U0001f600` as Python writes them | `"text"` |
| `\'`, `\_`, `\d`: escapes that JSON does not know | the apostrophe; else the backslash stays |
| `name:` without quotes | `"name":` |
| `True`, `None`, `undefined`, `nan`, `+5`, `.5` | `true`, `null`, `null`, `NaN`, `5`, `0.5` |
| `// comment`, `# comment`, `/* comment */` | nothing |

Nothing is guessed: a quote that was not escaped, a text without its end or a missing colon leaves
the JSON damaged, since what is made of it could be a value that is cut.
"""

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*+")
    # an apostrophe between two letters is one
    | (?P<quoted>'(?:[^'\\]|\\.|(?<=\w)'(?=\w))*+')
    | (?P<comment>//[^\n]*|\#[^\n]*|/\*.*?\*/)
    | (?P<mark>[{}\[\]:,])
    | (?P<word>[^\s{}\[\]:,"'/\#]+)
    | (?P<blank>\s+)
    """,
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8})|(u[0-9a-fA-F]{4}|[\"\\/bfnrt])|(')|(.))|(\")",
    re.DOTALL,
)
_NAME = re.compile(r"[^\W\d][\w-]*\Z")
_NUMBER = re.compile(r"\+?(-?)(?:(\d+(?:\.\d+)?)|(\.\d+))((?:[eE][-+]?\d+)?)\Z")
_LITERALS = {
    "true": "true", "false": "false", "null": "null", "none": "null", "undefined": "null",
    "nan": "NaN", "infinity": "Infinity", "-infinity": "-Infinity",
}  # fmt: skip


def to_json(piece: str) -> str | None:
    """Return an almost-JSON object as JSON, or None where it cannot be read for certain."""
    tokens = list(_tokens(piece))
    if any(kind == "fault" for kind, _ in tokens):
        return None
    made: list[str] = []
    for (kind, text), (_, following) in zip(tokens, [*tokens[1:], ("", "")], strict=True):
        word = _word(text, is_name=following == ":") if kind == "word" else text
        if word is None:
            return None
        if not (word == "," and following in {"}", "]"}):
            made.append(word)
        if word in {"}", "]"} and following[:1] in {"{", "[", '"'}:
            made.append(",")
    return " ".join(made)


def _tokens(piece: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of what counts, strings as JSON; a fault for what is no token."""
    at = 0
    while at < len(piece):
        match = _TOKEN.match(piece, at)
        if match is None:
            yield "fault", ""
            return
        at = match.end()
        kind = str(match.lastgroup)
        if kind in {"string", "quoted"}:
            yield "string", f'"{_ESCAPE.sub(_escape, match[0][1:-1])}"'
        elif kind not in {"comment", "blank"}:
            yield kind, match[0]


def _escape(match: re.Match[str]) -> str:
    byte, wide, known, apostrophe, other, quote = match.groups()
    if byte or wide:
        code = int(byte or wide, 16)
        return f"\\u{code:04x}" if code < 0x10000 else chr(min(code, 0x10FFFF))
    if known:
        return f"\\{known}"
    if apostrophe:
        return "'"
    return '\\"' if quote else f"\\\\{other}"


def _word(word: str, *, is_name: bool) -> str | None:
    """Return a bare word as JSON: a name before its colon, a literal, a number."""
    if is_name:
        return f'"{word}"' if _NAME.match(word) else None
    number = _NUMBER.match(word)
    if number:
        return f"{number[1]}{number[2] or '0' + number[3]}{number[4]}"
    return _LITERALS.get(word.lower())
