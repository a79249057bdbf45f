"""From a node's input to requests, their hashes, and the fingerprint of what it depends on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from hltm_spark.core.config import Settings
from hltm_spark.core.prompts import TASKS, Prompt, load_prompt, node_values
from hltm_spark.core.records import NodeInput, fingerprint
from hltm_spark.models.answering import REPAIR
from hltm_spark.models.llm import Request

WAVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "separate": (("facets", "question_answers", "summary"), ("one_sentence_summary",)),
    "fused": (("fused",),),
}
"""Tasks that can be asked together: the one-sentence summary is written from the detailed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrompts:
    """Everything but the input that decides what a node's views say; travels to executors.

    Attributes:
        prompts: Every leaf and parent prompt of the layout, and the repair prompt, by id.
        guidance: Declared facets and hints, as the prompts show them.
        layout: Key of `WAVES`.
        model: Model name of the ledger.
        parameters: Fingerprint of what else changes an answer (temperature, limits, declared
            facets for the extractive provider).
        max_questions: Question-answer pairs kept of one answer.
    """

    prompts: Mapping[str, Prompt]
    guidance: str
    layout: str
    model: str
    parameters: str
    max_questions: int

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Read the prompts that the settings name."""
        ids = [f"{kind}/{task}" for kind in ("leaf", "parent") for task in settings.tasks]
        folder = settings.views.prompts or None
        return cls(
            prompts={name: load_prompt(name, folder=folder) for name in (*ids, REPAIR)},
            guidance=guidance_text(settings),
            layout=settings.views.layout,
            model=settings.llm.model_name,
            parameters=_parameters(settings),
            max_questions=settings.views.max_questions,
        )

    def request(self, node: NodeInput, task: str, *, summary: str | None = None) -> Request:
        """Return one task's request for a node.

        Args:
            node: The node's input.
            task: One of the layout's tasks.
            summary: The detailed summary, for one_sentence_summary only.
        """
        prompt = self.prompts[f"{'leaf' if node.is_leaf else 'parent'}/{task}"]
        system, user = prompt.render(node_values(node, guidance=self.guidance, summary=summary))
        payload = node.to_dict() if summary is None else {**node.to_dict(), "summary": summary}
        return Request(
            task=prompt.prompt_id,
            output=prompt.output,
            system=system,
            user=user,
            payload=payload,
        )

    def request_hash(self, request: Request, *, tenant_id: str) -> str:
        """Return the ledger's key of a request: two tenants never share one."""
        return fingerprint(
            tenant_id, request.task, self.model, self.parameters, request.system, request.user
        )

    def first_requests(self, node: NodeInput) -> Iterator[tuple[str, Request]]:
        """Yield (task, request) of the tasks that need no other answer."""
        for task in WAVES[self.layout][0]:
            yield task, self.request(node, task)

    def fingerprint_of(self, *, is_leaf: bool) -> str:
        """Return what a node depends on besides its inputs."""
        kind = "leaf" if is_leaf else "parent"
        prompts = [self.prompts[f"{kind}/{task}"].fingerprint for task in TASKS[self.layout]]
        return fingerprint(self.layout, self.model, self.parameters, self.guidance, prompts)

    @property
    def fingerprint(self) -> str:
        """Fingerprint over leaf and parent prompts: a run with another one considers every node."""
        return fingerprint(self.fingerprint_of(is_leaf=True), self.fingerprint_of(is_leaf=False))


def guidance_text(settings: Settings) -> str:
    """Return the declared facets and hints as a block of prompt text; empty without any."""
    lines = []
    if settings.facets:
        lines.append("Facet names to use where the inputs say something of the kind:")
        lines += [
            _facet_line(facet.name, facet.aliases, facet.description) for facet in settings.facets
        ]
    if settings.hints.facets:
        lines.append("Also worth a facet: " + "; ".join(settings.hints.facets))
    if settings.hints.questions:
        lines.append("Questions worth answering where the inputs do:")
        lines += [f"- {question}" for question in settings.hints.questions]
    count = f"{settings.views.min_questions} to {settings.views.max_questions}"
    return "\n".join([*lines, f"Number of question-answer pairs: {count}."])


def _facet_line(name: str, aliases: tuple[str, ...], description: str) -> str:
    also = f" (also written: {', '.join(aliases)})" if aliases else ""
    return f"- {name}{also}" + (f": {description}" if description else "")


def _parameters(settings: Settings) -> str:
    llm = settings.llm
    if llm.provider == "extractive":
        parts: list[Any] = [facet.model_dump(mode="json") for facet in settings.facets]
        views = settings.views.model_dump(
            mode="json", include={"min_support", "min_questions", "max_questions"}
        )
        return fingerprint(
            parts, views, settings.hints.model_dump(mode="json"), settings.level_names
        )
    return fingerprint(llm.temperature, llm.max_output_tokens, settings.views.max_questions)
