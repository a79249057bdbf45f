"""From a node's input to requests, their hashes, and the fingerprint of what it depends on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.core.escaping import escape_attribute
from hltm_spark.core.prompts import (
    TASKS,
    Prompt,
    load_prompt,
    node_values,
    render_child,
    render_document,
)
from hltm_spark.core.records import Child, Document, NodeInput, fingerprint
from hltm_spark.core.tokens import cut_to_tokens, estimate_tokens
from hltm_spark.models.answering import EXTRACTIVE, REPAIR
from hltm_spark.models.llm import Request

WAVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "separate": (("facets", "question_answers", "summary"), ("one_sentence_summary",)),
    "fused": (("fused",),),
}
"""Tasks that can be asked together: the one-sentence summary is written from the detailed one."""

MIN_ROOM = 60
"""Tokens that a budget must leave for a node's items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrompts:
    """Everything but the input that decides what a node's views say; travels to executors.

    Attributes:
        prompts: Every leaf and parent prompt of the layout, and the repair prompt, by id.
        guidance: Declared facets and hints as the prompts show them, by prompt variable.
        layout: Key of `WAVES`.
        model: Model name of the ledger.
        parameters: Fingerprint of what else changes an answer (temperature, limits, declared
            facets for the extractive provider).
        max_questions: Question-answer pairs kept of one answer.
        max_input_tokens: Budget of one prompt; a larger input is reduced in groups.
        max_summary_tokens: Bound of a summary that another task's prompt shows; 0 where none does.
    """

    prompts: Mapping[str, Prompt]
    guidance: Mapping[str, str]
    layout: str
    model: str
    parameters: str
    max_questions: int
    max_input_tokens: int
    max_summary_tokens: int = 0
    _frames: dict[str, tuple["_Frame", ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Read the prompts that the settings name.

        Raises:
            PromptError: A prompt is missing or has no right shape.
            SettingsError: The token budget leaves no room beside a prompt.
        """
        ids = [f"{kind}/{task}" for kind in ("leaf", "parent") for task in settings.tasks]
        folder = settings.views.prompts or None
        has_summary = len(WAVES[settings.views.layout]) > 1
        loaded = cls(
            prompts={name: load_prompt(name, folder=folder) for name in (*ids, REPAIR)},
            guidance=guidance_of(settings),
            layout=settings.views.layout,
            model=settings.llm.model_name,
            parameters=_parameters(settings),
            max_questions=settings.views.max_questions,
            max_input_tokens=settings.budgets.max_input_tokens,
            max_summary_tokens=settings.llm.max_output_tokens if has_summary else 0,
        )
        loaded.check_budget(settings.level_names)
        return loaded

    def check_budget(self, level_names: Sequence[str]) -> None:
        """Raise where a prompt leaves too little of the budget for a node's items.

        Raises:
            SettingsError: Fewer than `MIN_ROOM` tokens are left; it names the smallest budget.
        """

        def room(budget: int) -> int:
            return min(self._room_in(budget, level, "") for level in level_names)

        smallest = self.max_input_tokens
        while room(smallest) < MIN_ROOM:
            smallest += MIN_ROOM - room(smallest)
        if smallest > self.max_input_tokens:
            raise SettingsError(
                f"budgets.max_input_tokens must be at least {smallest} to hold these prompts and "
                f"guidance, got {self.max_input_tokens}"
            )

    def request(
        self,
        node: NodeInput,
        task: str,
        *,
        summary: str | None = None,
        is_group: bool = False,
        items: Mapping[str, str] | None = None,
    ) -> Request:
        """Return one task's request for a node.

        Args:
            node: The node's input.
            task: One of the layout's tasks.
            summary: The detailed summary, for one_sentence_summary only; its prompt shows as much
                of it as the budget allows.
            is_group: True where the node is a group of a larger one's items.
            items: `item_values` of the node, where they are at hand.
        """
        prompt = self.prompts[f"{'leaf' if node.is_leaf else 'parent'}/{task}"]
        values = node_values(node, guidance=self.guidance, summary=summary, items=items)
        system, user = prompt.render(values)
        if summary:
            excess = estimate_tokens(system) + estimate_tokens(user) - self.max_input_tokens
            if excess > 0:
                limit = max(0, estimate_tokens(values["summary"]) - excess)
                values["summary"] = cut_to_tokens(values["summary"], limit)
                system, user = prompt.render(values)
        payload: dict[str, Any] = {}
        if self.model == EXTRACTIVE:
            payload |= node.to_dict() | ({} if summary is None else {"summary": summary})
        if is_group:
            payload["group"] = True
        return Request(
            task=prompt.prompt_id,
            output=prompt.output,
            system=system,
            user=user,
            payload=payload,
            node=node,
        )

    def request_hash(self, request: Request, *, tenant_id: str) -> str:
        """Return the ledger's key of a request: two tenants never share one.

        A group's request is never that of a whole node. The extractive provider reads more than
        a prompt shows (sources, supports, times), so the payload counts for it.
        """
        parts = [tenant_id, request.task, self.model, self.parameters, request.system, request.user]
        if request.payload.get("group"):
            parts.append("group")
        if self.model == EXTRACTIVE:
            parts.append(fingerprint(request.payload))
        return fingerprint(*parts)

    def first_requests(
        self, node: NodeInput, *, is_group: bool = False
    ) -> Iterator[tuple[str, Request]]:
        """Yield (task, request) of the tasks that need no other answer."""
        for task in WAVES[self.layout][0]:
            yield task, self.request(node, task, is_group=is_group)

    def shown(self, item: Document | Child) -> str:
        """Return an item as the prompts show it."""
        return render_child(item) if isinstance(item, Child) else render_document(item)

    def room(self, node: NodeInput) -> int:
        """Return the tokens that a prompt of this node has left for its items, at least 1.

        The largest prompt of the layout decides, and a tenth is kept in reserve.
        """
        return self._room_in(self.max_input_tokens, node.level, node.node_id)

    def _room_in(self, budget: int, level: str, node_id: str) -> int:
        if level not in self._frames:
            self._frames[level] = tuple(self._read_frames(level))
        id_tokens = estimate_tokens(escape_attribute(node_id))
        summary = min(self.max_summary_tokens, budget // 4)
        largest = max(
            frame.tokens + frame.ids * id_tokens + frame.summaries * summary
            for frame in self._frames[level]
        )
        left = budget - largest
        return max(1, left - left // 10)

    def _read_frames(self, level: str) -> Iterator["_Frame"]:
        empty = NodeInput(tenant_id="", node_id="", level=level)
        values = node_values(empty, guidance=self.guidance, summary="")
        for name, prompt in self.prompts.items():
            if name == REPAIR:
                continue
            system, user = prompt.render(values)
            used = f"{prompt.system}\n{prompt.user}".replace("{", "")
            yield _Frame(
                tokens=estimate_tokens(system) + estimate_tokens(user),
                ids=used.count("$node_id"),
                summaries=used.count("$summary"),
            )

    def fingerprint_of(self, *, is_leaf: bool) -> str:
        """Return what a node depends on besides its inputs."""
        kind = "leaf" if is_leaf else "parent"
        prompts = [self.prompts[f"{kind}/{task}"].fingerprint for task in TASKS[self.layout]]
        budget = [self.max_input_tokens, self.max_summary_tokens]  # they decide the groups
        return fingerprint(self.layout, self.model, self.parameters, self.guidance, prompts, budget)

    @property
    def fingerprint(self) -> str:
        """Fingerprint over leaf and parent prompts: a run with another one considers every node."""
        return fingerprint(self.fingerprint_of(is_leaf=True), self.fingerprint_of(is_leaf=False))


@dataclass(frozen=True, slots=True)
class _Frame:
    """A prompt without items: its tokens, and how often it shows the node's id and a summary."""

    tokens: int
    ids: int
    summaries: int


def guidance_of(settings: Settings) -> dict[str, str]:
    """Return the declared facets and hints as blocks of prompt text, by prompt variable.

    Aliases are not shown: a model knows a matter in any wording, and every word is paid for with
    every call. Summaries are told of the hints alone (`matters`).
    """
    lines = []
    if settings.facets:
        lines.append("Declared facets:")
        lines += [_facet_line(facet.name, facet.description) for facet in settings.facets]
    if settings.hints.facets:
        lines.append("Also worth a facet: " + "; ".join(settings.hints.facets))
    questions = [f"- {question}" for question in settings.hints.questions]
    if questions:
        questions.insert(0, "Questions worth answering where the inputs do:")
    count = f"{settings.views.min_questions} to {settings.views.max_questions}"
    questions.append(f"Number of question-answer pairs: {count}.")
    return {
        "facets": "\n".join(lines) or "Declared facets: none",
        "matters": "; ".join(settings.hints.facets) or "whatever may be asked",
        "questions": "\n".join(questions),
    }


def _facet_line(name: str, description: str) -> str:
    return f"- {name}" + (f": {description}" if description else "")


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
