"""Predicted answers: text of the size to expect, where a plan must not call a model."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from hltm_spark.core.config import Settings
from hltm_spark.core.prompts import OUTPUTS, TASKS
from hltm_spark.core.records import Child, NodeInput, QuestionAnswer, Views
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models.answering import EXTRACTIVE
from hltm_spark.models.fan_in import item_tokens
from hltm_spark.models.llm import Completion, Request
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.tables import (
    LLM_CALLS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Estimated tokens of a memory as its parent's prompt shows it, and of its summary alone."""

    tokens: int
    summary: int

    @classmethod
    def of(cls, memory: Mapping[str, Any], prompts: NodePrompts) -> Self:
        """Measure a row of `memory`."""
        child = Child.from_dict(memory)
        summary = estimate_tokens(child.views.summary)
        return cls(tokens=item_tokens(child, prompts), summary=summary)

    @classmethod
    def of_stored(cls, memory: Mapping[str, Any], prompts: NodePrompts) -> Self | None:
        """Measure a row of `memory`; None where the node was never written."""
        return cls.of(memory, prompts) if memory["summary"] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is on record about answers of the conf's model.

    Attributes:
        completions: (answers, completion tokens) by (level, prompt id).
        sizes: Mean size of stored memories by level.
        quarter: A quarter of the longest answer: what is assumed without a record.
    """

    completions: Mapping[tuple[str, str], tuple[int, int]]
    sizes: Mapping[str, Size]
    quarter: int

    @classmethod
    def empty(cls, settings: Settings) -> Self:
        """Return the history of a model that was never asked."""
        return cls(completions={}, sizes={}, quarter=settings.llm.max_output_tokens // 4)

    def completion_tokens(self, level: str, prompt_id: str) -> float:
        """Return the mean of one kind of answer: of this level, else of any."""
        same_level = self._mean(lambda key: key == (level, prompt_id))
        return same_level or self._mean(lambda key: key[1] == prompt_id) or float(self.quarter)

    def size(self, level: str, tasks: Iterable[str]) -> Size:
        """Return the size to expect of a memory that is not stored."""
        if level in self.sizes:
            return self.sizes[level]
        shown = [task for task in tasks if task != "one_sentence_summary"]
        tokens = sum(self._task_mean(level, task) for task in shown)
        tokens = tokens or sum(self._task_mean("", task) for task in shown) or self.quarter
        return Size(tokens=int(tokens), summary=int(tokens) // 2)

    def _task_mean(self, level: str, task: str) -> float:
        def is_wanted(key: tuple[str, str]) -> bool:
            return key[1].endswith(f"/{task}") and level in {"", key[0]}

        return self._mean(is_wanted)

    def _mean(self, is_wanted: Callable[[tuple[str, str]], bool]) -> float:
        found = [numbers for key, numbers in self.completions.items() if is_wanted(key)]
        answers = sum(count for count, _ in found)
        return sum(tokens for _, tokens in found) / answers if answers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictingClient:
    """Stands where a run has a model: it answers with text of the size to expect.

    Attributes:
        sizes: Of stored memories by (tenant_id, node_id).
    """

    prompts: NodePrompts
    history: History
    sizes: Mapping[tuple[str, str], Size] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model that a run would ask."""
        return self.prompts.model

    def complete(self, request: Request) -> Completion:
        """Return a predicted answer, with the estimated tokens of the prompt."""
        node = cast("NodeInput", request.node)  # a run asks about nodes only
        return self.predict(request, node, self.sizes.get((node.tenant_id, node.node_id)))

    def close(self) -> None:
        """Do nothing."""

    def predict(self, request: Request, node: NodeInput, size: Size | None) -> Completion:
        """Return an answer that makes the node's memory as large as its stored one."""
        expected = size or self.history.size(node.level, TASKS[self.prompts.layout])
        is_free = self.model == EXTRACTIVE
        return Completion(
            text=predicted_response(request.output, node, expected, self.prompts),
            finish_reason="stop",
            prompt_tokens=0 if is_free else prompt_tokens(request),
            completion_tokens=0,
            latency_s=0.0,
        )


def predict_answers(
    rows: Iterable[Mapping[str, Any]], client: PredictingClient, *, run_id: str
) -> Iterator[dict[str, Any]]:
    """Yield a ledger row for each open request.

    A prompt beyond the budget has no row, as a run does not send it.

    Args:
        rows: `OPEN_REQUEST` columns, and `stored`: the node's memory, or None.
        client: Predicts the answers.
        run_id: The plan's id.
    """
    prompts = client.prompts
    for row in rows:
        payload = json.loads(row["payload"])
        node = NodeInput.from_dict(payload)
        request = prompts.request(
            node, row["task"], summary=row["summary"], is_group=bool(payload.get("group"))
        )
        size = Size.of_stored(row["stored"], prompts) if row["stored"] else None
        answer = client.predict(request, node, size)
        if answer.prompt_tokens > prompts.max_input_tokens:
            continue
        yield {
            **dict.fromkeys(LLM_CALLS.columns),
            **{name: row[name] for name in ("tenant_id", "tenant_key", "request_hash", "node_id")},
            "level": node.level,
            "task": request.task,
            "model": prompts.model,
            "is_usable": True,
            "response": answer.text,
            "prompt_tokens": answer.prompt_tokens,
            "run_id": run_id,
        }


def prompt_tokens(request: Request) -> int:
    """Return the estimated tokens of a request's prompt."""
    return estimate_tokens(request.system) + estimate_tokens(request.user)


def predicted_response(output: str, node: NodeInput, size: Size, prompts: NodePrompts) -> str:
    """Return an answer that makes the node's memory as large as it is expected to be."""
    pair = QuestionAnswer(question="plan?", answer="")
    views = Views(question_answers=(pair,), summary="")
    frame = Child(node_id=node.node_id, latest_at=node.latest_at, views=views)
    room = size.tokens - item_tokens(frame, prompts)
    summary = max(1, min(size.summary, room - 1))
    fields = {
        "facets": {},
        "rationale": "",
        "question_answers": [{"question": pair.question, "answer": _filler(room - summary)}],
        "summary": _filler(summary),
        "one_sentence_summary": "plan",
    }
    return json.dumps({key: fields[key] for key in OUTPUTS[output]})


def _filler(tokens: int) -> str:
    return " ".join(["plan"] * max(1, tokens))
