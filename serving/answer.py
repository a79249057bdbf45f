"""From what was recalled to an answer: the context in its budget, one call, a checked citation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.escaping import escape_attribute, escape_text
from hltm_spark.core.prompts import Prompt, load_prompt
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models.answering import ask
from hltm_spark.models.llm import Completion, LlmClient, Request
from serving.results import Context, Hit, Usage

SHOWN_DOCUMENTS = 3
"""Document ids that the prompt shows with a hit."""


@dataclass(slots=True)
class Meter:
    """Counts the model calls of one query."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def record(self, _request: Request, completion: Completion, _usable: bool) -> None:  # noqa: FBT001
        """Count one answer."""
        self.calls += 1
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens

    @property
    def usage(self) -> Usage:
        """The counts as a result."""
        return Usage(
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
        )


def read_query(
    client: LlmClient, query: str, settings: Settings, meter: Meter
) -> list[tuple[str, str]]:
    """Return the query as facets; none where the model finds none in it."""
    values = {"query": escape_text(query), "guidance": _known_facets(settings)}
    request = _request("query/facets", values, {"query": query}, settings)
    parsed = ask(client, request, source_ids=(), on_completion=meter.record)
    return [(facet["name"], facet["value"]) for facet in parsed.fields["facets"]]


def write_answer(
    client: LlmClient, context: Context, settings: Settings, meter: Meter
) -> tuple[dict[str, Any], list[Hit]]:
    """Return the fields rationale, answer, citation, and the hits that the model was shown."""
    hits = within_budget(context, settings.retrieval.max_context_tokens)
    shown = "\n".join(render_hit(hit) for hit in hits) or "(none)"
    values = {"query": escape_text(context.query), "context": shown}
    payload = {"query": context.query, "context": [_payload(hit) for hit in hits]}
    request = _request("query/answer", values, payload, settings)
    ids = tuple(dict.fromkeys(hit.node_id for hit in hits))
    parsed = ask(client, request, source_ids=ids, on_completion=meter.record)
    return parsed.fields, hits


def within_budget(context: Context, max_tokens: int) -> list[Hit]:
    """Return the hits for the prompt: the lists by turns, best first, as far as they fit.

    A node's facet set is one item of its list. The first item always fits: an answer from one long
    summary is better than none.
    """
    chosen: list[Hit] = []
    spent = 0
    for item in _by_turns(context):
        tokens = sum(estimate_tokens(render_hit(hit)) for hit in item)
        if chosen and spent + tokens > max_tokens:
            continue
        chosen.extend(item)
        spent += tokens
    return chosen


def render_hit(hit: Hit) -> str:
    """Return a hit as the prompt shows it."""
    shown = {
        "id": hit.node_id,
        "level": hit.level,
        "view": hit.view,
        "time": hit.latest_at,
        "documents": " ".join(hit.documents[:SHOWN_DOCUMENTS]),
    }
    attributes = "".join(f' {n}="{escape_attribute(v)}"' for n, v in shown.items() if v)
    return f"<memory{attributes}>{escape_text(_line(hit))}</memory>"


def cited_documents(
    citation: Sequence[str], hits: Sequence[Hit], answer: str
) -> dict[str, tuple[str, ...]]:
    """Return the documents behind the hits of each cited node, those that the answer repeats first.

    Args:
        citation: Node ids, best first.
        hits: What the model was shown.
        answer: What it wrote.
    """
    said = answer.casefold()
    ordered = sorted(hits, key=lambda hit: not _is_repeated(hit, said))
    return {
        node: tuple(dict.fromkeys(d for h in ordered if h.node_id == node for d in h.documents))
        for node in citation
    }


def _known_facets(settings: Settings) -> str:
    """Return the facet names that nodes are likely to have, for the query to be read in them."""
    names = [f"- {f.name}: {f.description}".removesuffix(": ") for f in settings.facets]
    names += [f"- {name}" for name in settings.hints.facets]
    return "\n".join(["Facet names:", *names]) if names else ""


def _is_repeated(hit: Hit, said: str) -> bool:
    return any(text and text.casefold() in said for text in (hit.answer, hit.text))


def _request(
    prompt_id: str, values: Mapping[str, str], payload: Mapping[str, Any], settings: Settings
) -> Request:
    prompt = _prompt(prompt_id, settings.views.prompts)
    system, user = prompt.render(values)
    return Request(
        task=prompt.prompt_id, output=prompt.output, system=system, user=user, payload=payload
    )


@lru_cache
def _prompt(prompt_id: str, folder: str) -> Prompt:
    """Return a query prompt of the user's folder; the shipped one where that has none."""
    own = folder and Path(folder, f"{prompt_id}.md").is_file()
    return load_prompt(prompt_id, folder=folder if own else None)


def _line(hit: Hit) -> str:
    if hit.view == "facet":
        counts = f" ({hit.support} of {hit.total})" if hit.total > 1 else ""
        return f"{hit.name}: {hit.text}{counts}"
    if hit.view == "question":
        return f"{hit.text} {hit.answer}"
    return f"{hit.name}: {hit.text}" if hit.name else hit.text


def _by_turns(context: Context) -> Iterator[list[Hit]]:
    sets = [list(group) for _, group in groupby(context.facets, lambda hit: hit.node_id)]
    single = (context.questions, context.summaries, context.evidence)
    lists = (sets, *([[hit] for hit in hits] for hits in single))
    for turn in zip_longest(*lists):
        yield from (item for item in turn if item)


def _payload(hit: Hit) -> dict[str, Any]:
    names = ("node_id", "level", "view", "name", "text", "answer", "support", "total", "latest_at")
    return {**{name: getattr(hit, name) for name in names}, "documents": list(hit.documents)}
