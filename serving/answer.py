"""From what was recalled to an answer: the context within its budget, one call, a checked citation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.prompts import escape_attribute, escape_text, load_prompt
from hltm_spark.models.answering import ask
from hltm_spark.models.llm import Completion, LlmClient, Request
from hltm_spark.models.requests import guidance_text
from hltm_spark.models.tokens import estimate_tokens
from serving.results import Context, Hit, Usage


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
    """Return the query as facets; the whole query where none is found in it."""
    prompt = load_prompt("query/facets")
    system, user = prompt.render(
        {"query": escape_text(query), "guidance": guidance_text(settings)}
    )
    request = Request(
        task=prompt.prompt_id,
        output=prompt.output,
        system=system,
        user=user,
        payload={"query": query},
    )
    parsed = ask(client, request, source_ids=(), on_completion=meter.record)
    return [(facet["name"], facet["value"]) for facet in parsed.fields["facets"]]


def write_answer(
    client: LlmClient, context: Context, settings: Settings, meter: Meter
) -> tuple[dict[str, Any], list[Hit]]:
    """Return the fields rationale, answer, citation, and the hits that the model was shown."""
    hits = within_budget(context, settings.retrieval.max_context_tokens)
    prompt = load_prompt("query/answer")
    shown = "\n".join(render_hit(hit) for hit in hits) or "(none)"
    system, user = prompt.render({"query": escape_text(context.query), "context": shown})
    request = Request(
        task=prompt.prompt_id,
        output=prompt.output,
        system=system,
        user=user,
        payload={"query": context.query, "context": [_payload(hit) for hit in hits]},
    )
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
        "documents": " ".join(hit.documents[:3]),
    }
    attributes = "".join(f' {n}="{escape_attribute(v)}"' for n, v in shown.items() if v)
    return f"<memory{attributes}>{escape_text(_line(hit))}</memory>"


def documents_of(citation: Sequence[str], hits: Sequence[Hit], answer: str) -> tuple[str, ...]:
    """Return the documents behind the cited nodes' hits, those that the answer repeats first."""
    cited = [hit for node in citation for hit in hits if hit.node_id == node]
    said = answer.casefold()
    repeated = [h for h in cited if (h.answer or h.text).casefold() in said or h.text.casefold() in said]
    ordered = [*repeated, *cited]
    return tuple(dict.fromkeys(d for hit in ordered for d in hit.documents))


def _line(hit: Hit) -> str:
    if hit.view == "facet":
        counts = f" ({hit.support} of {hit.total})" if hit.total > 1 else ""
        return f"{hit.name}: {hit.text}{counts}"
    if hit.view == "question":
        return f"{hit.text} {hit.answer}"
    return f"{hit.name}: {hit.text}" if hit.name else hit.text


def _by_turns(context: Context) -> Iterator[list[Hit]]:
    sets = [list(group) for _, group in groupby(context.facets, lambda hit: hit.node_id)]
    singles: Callable[[Sequence[Hit]], list[list[Hit]]] = lambda hits: [[hit] for hit in hits]  # noqa: E731
    lists = (sets, singles(context.questions), singles(context.summaries), singles(context.evidence))
    for turn in zip_longest(*lists):
        yield from (item for item in turn if item)


def _payload(hit: Hit) -> dict[str, Any]:
    names = ("node_id", "level", "view", "name", "text", "answer", "support", "total", "latest_at")
    return {**{name: getattr(hit, name) for name in names}, "documents": list(hit.documents)}
