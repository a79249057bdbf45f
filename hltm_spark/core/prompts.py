"""Prompts as files: TOML front matter, then a system and a user part with `$name` variables.

    +++
    id = "leaf/facets"
    output = "facets"
    +++
    ## system
    ...
    ## user
    ... $documents ...

`output` names one of `OUTPUTS`, which fixes the response keys. A prompt's fingerprint covers all
of its text, and is part of every request hash: editing a prompt re-runs what depends on it.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from hltm_spark.core.errors import PromptError
from hltm_spark.core.escaping import attribute_names, escape_attribute, escape_text
from hltm_spark.core.records import Child, Document, NodeInput, fingerprint
from hltm_spark.core.resources import resource

TASKS = {
    "separate": ("facets", "question_answers", "summary", "one_sentence_summary"),
    "fused": ("fused",),
}
"""Tasks of each layout in call order; a node's prompt is `leaf/<task>` or `parent/<task>`."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "facets": ("facets",),
    "question_answers": ("rationale", "question_answers"),
    "summary": ("summary",),
    "one_sentence_summary": ("one_sentence_summary",),
    "fused": ("facets", "rationale", "question_answers", "summary", "one_sentence_summary"),
    "answer": ("rationale", "answer", "citation"),
}
"""Response keys of each output (design, section 6)."""

_SHAPE = re.compile(r"\A\+\+\+\n(.*?)\n\+\+\+\n+## system\n(.*?)\n## user\n(.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt file, frozen so that it travels to executors as a value."""

    prompt_id: str
    output: str
    system: str
    user: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the file that reaches the model."""
        return _fingerprint_of(self)

    @property
    def variables(self) -> frozenset[str]:
        """Names that `render` needs."""
        names = Template(self.system).get_identifiers() + Template(self.user).get_identifiers()
        return frozenset(names)

    def render(self, values: Mapping[str, str]) -> tuple[str, str]:
        """Return (system, user) with the variables filled in; a value is never read as a template.

        Raises:
            PromptError: The prompt uses a name that is not among the values.
        """
        if unknown := sorted(self.variables - values.keys()):
            raise PromptError(
                f"prompt {self.prompt_id!r} uses unknown variables {unknown}; "
                f"known here: {sorted(values)}"
            )
        return Template(self.system).substitute(values), Template(self.user).substitute(values)


@lru_cache
def _fingerprint_of(prompt: Prompt) -> str:
    return fingerprint(prompt.prompt_id, prompt.output, prompt.system, prompt.user)


def load_prompt(prompt_id: str, *, folder: str | None = None) -> Prompt:
    """Read one prompt, from a folder of the user's or from those that come with the package.

    Raises:
        PromptError: No such file, or its header and text disagree.
    """
    root: Traversable = Path(folder) if folder else resource("prompts")
    file = root.joinpath(*f"{prompt_id}.md".split("/"))
    if not file.is_file():
        raise PromptError(f"no prompt {prompt_id!r} in {folder or 'the shipped prompts'}")
    return parse_prompt(file.read_text(encoding="utf-8"), name=prompt_id)


def parse_prompt(text: str, *, name: str) -> Prompt:
    """Return the prompt that a file's text holds; `name` is what the file is called."""
    shape = _SHAPE.match(text.replace("\r\n", "\n"))
    if shape is None:
        raise PromptError(f"prompt {name!r} needs '+++' front matter, '## system' and '## user'")
    try:
        header = tomllib.loads(shape[1])
    except tomllib.TOMLDecodeError as error:
        raise PromptError(f"prompt {name!r} has front matter that is not TOML: {error}") from error
    if header.keys() != {"id", "output"} or header["id"] != name:
        raise PromptError(f"prompt {name!r} needs exactly id = {name!r} and output in its header")
    if header["output"] not in OUTPUTS:
        raise PromptError(
            f"prompt {name!r} has output {header['output']!r}; known: {sorted(OUTPUTS)}"
        )
    for part in (shape[2], shape[3]):
        if not Template(part).is_valid():
            raise PromptError(f"prompt {name!r} has a stray '$'; write '$$' for a plain dollar")
    return Prompt(
        prompt_id=name, output=header["output"], system=shape[2].strip(), user=shape[3].strip()
    )


def render_document(document: Document) -> str:
    """Return a document as the prompt shows it: id, kind, time, metadata, then its text."""
    shown = {"id": document.doc_id, "kind": document.kind, "time": document.event_time}
    shown |= {"part": document.part}
    more = sorted((name, value) for name, value in document.metadata.items() if value)
    named = zip(
        attribute_names(name for name, _ in more), (value for _, value in more), strict=True
    )
    attributes = "".join(
        f' {name}="{escape_attribute(value)}"' for name, value in (*shown.items(), *named) if value
    )
    return f"<document{attributes}>\n{escape_text(document.text)}\n</document>"


def render_child(child: Child) -> str:
    """Return a child as its parent's prompt shows it: facets, pairs, then the summary.

    A group of children says how many it stands for, and how many of them state each value.
    """
    views = child.views
    time = f' time="{escape_attribute(child.latest_at)}"' if child.latest_at else ""
    size = f' stands-for="{child.size}"' if child.is_group else ""
    lines = [f'<child id="{escape_attribute(child.node_id)}"{time}{size}>']
    if views.facets:
        lines.append("facets:")
        is_counted = child.is_group and not child.is_own
        lines += [
            f"- {escape_text(f'{f.name}: {f.value}')}"
            + (f" ({f.support} of {f.total})" if is_counted else "")
            for f in views.facets
        ]
    if views.question_answers:
        lines.append("question-answer pairs:")
        lines += [f"- {escape_text(f'{q.question} {q.answer}')}" for q in views.question_answers]
    lines += [f"summary: {escape_text(views.summary)}", "</child>"]
    return "\n".join(lines)


def item_values(node: NodeInput) -> dict[str, str]:
    """Return a node's items as `$documents` and `$children` show them; empty where it has none."""
    return {
        "documents": "\n".join(render_document(d) for d in node.documents),
        "children": "\n".join(render_child(c) for c in node.children),
    }


def node_values(
    node: NodeInput,
    *,
    guidance: Mapping[str, str],
    summary: str | None,
    items: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return every variable that a leaf or parent prompt may use.

    Args:
        node: What is rendered as `$documents` and `$children`.
        guidance: Declared facets and hints from conf, for `$facets`, `$questions`, `$matters`.
        summary: The detailed summary, for the one-sentence task only.
        items: `item_values` of the node, where they are at hand.
    """
    values = {
        "level": escape_text(node.level),
        "node_id": escape_attribute(node.node_id),
        **guidance,
        **{name: text or "(none)" for name, text in (items or item_values(node)).items()},
    }
    return values if summary is None else {**values, "summary": escape_text(summary)}
