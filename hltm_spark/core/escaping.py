"""What somebody wrote, as a prompt may show it: data that can never become a delimiter.

A prompt's delimiters are tags (`<document>`, `<child>`, `<memory>`, `<question>`), and around them
stand those of the model's chat template (`<|im_end|>`, `</s>`, `[INST]`), which a server of one's
own reads also inside a message. Only what could be taken for one of these is escaped, so that all
other text stays as its author wrote it. No two texts look the same escaped: the character
references that this module writes are themselves escaped where a text holds them already.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator

_BRACKETS = "<\uff1c\ufe64\u2039\u2329\u3008\u27e8\u276e\u02c2\u1438"
"""Left angle brackets, and what a reader may take for one."""

_INVISIBLE = (
    "[\\x00-\\x08\\x0e-\\x1f\\x7f\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]*"
)
_OWN_TAGS = ("documents", "document", "children", "child", "context", "memory", "question")
_CHAT_TAGS = (
    "s", "bos", "eos", "pad", "unk", "SYS", "start_of_turn", "end_of_turn", "tool_call",
    "tool_response",
)  # fmt: skip
_CHAT_WORDS = (
    "INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS", "TOOL_CONTENT",
    "THINK",
)  # fmt: skip


def _hidden(names: Iterable[str]) -> str:
    """Return a pattern of names, also with invisible characters between their letters."""
    return "|".join(_INVISIBLE.join(map(re.escape, name)) for name in names)


_TAG_NAME = (
    rf"[^\w&{_BRACKETS}>]*"
    # at the end of a text nobody knows what the prompt goes on with
    rf"(?:(?:{_hidden(_OWN_TAGS)})\b|(?:{_hidden(_CHAT_TAGS)})\s*/?>|\Z)"
)
_AFTER_ANGLE = rf"(?:[|\uff5c]|{_TAG_NAME})"
_AFTER_SQUARE = rf"\s*/?\s*(?:{'|'.join(_CHAT_WORDS)})\s*\]"
_CODES = "|".join(f"#0{{0,8}}{ord(c)}|#x0{{0,8}}{ord(c):x}" for c in f"[{_BRACKETS}")
_CODE = rf"(?:lt|{_CODES});?"
_REFERENCE = rf"(?:amp;)*{_CODE}(?:{_AFTER_ANGLE}|{_AFTER_SQUARE})"
_MARKUP = re.compile(
    rf"[&\[{_BRACKETS}]"
    rf"(?:(?<=&)(?={_REFERENCE})|(?<=\[)(?={_AFTER_SQUARE})|(?<=[{_BRACKETS}])(?={_AFTER_ANGLE}))",
    re.IGNORECASE,
)
_NAMED = {"<": "&lt;", "&": "&amp;"}
_OWN_ATTRIBUTES = frozenset({"id", "kind", "time", "part", "stands-for"})


def escape_text(text: str) -> str:
    """Return text that can neither open nor close one of a prompt's delimiters.

    The bracket of what could be taken for one becomes a character reference (`&lt;/document>`), and
    so does the `&` of a text that is such a reference already (`&amp;lt;/document>`).
    """
    return _MARKUP.sub(lambda m: _NAMED.get(m[0]) or f"&#{ord(m[0])};", text)


def escape_attribute(text: str) -> str:
    """Return text for an attribute in double quotes, on one line."""
    shown = html.escape(" ".join(text.split()), quote=True)
    return re.sub(rf"\[(?={_AFTER_SQUARE})", "&#91;", shown, flags=re.IGNORECASE)


def attribute_names(names: Iterable[str]) -> Iterator[str]:
    """Yield a name that an attribute may have for each name given, in order, never one twice.

    A name that the prompt itself gives to an attribute (`id`, `time`) gets `meta_` in front: what
    is written beside a document never takes the place of what the document is.
    """
    seen: Counter[str] = Counter()
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
        plain = f"meta_{plain}" if plain.casefold() in _OWN_ATTRIBUTES else plain
        unique = plain
        while seen[unique.casefold()]:
            seen[plain.casefold()] += 1
            unique = f"{plain}_{seen[plain.casefold()]}"
        seen[unique.casefold()] += 1
        yield unique
