"""What the files of a finished batch say, and what becomes of every request in it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hltm_spark.core.errors import LlmError, LlmStopError
from hltm_spark.models.batch_lines import (
    BatchLines,
    BatchState,
    FormatRefusedError,
    LaterError,
    read_lines,
)
from hltm_spark.models.llm import MALFORMED, REFUSED, UNAVAILABLE, Completion
from hltm_spark.models.parsing import parse_answer
from hltm_spark.pipeline.batch_parts import BatchRequests, Todo
from hltm_spark.pipeline.batch_records import BatchRecord, SentRequest
from hltm_spark.pipeline.calls import clean_text
from hltm_spark.pipeline.journal import Journal

logger = logging.getLogger("hltm_spark")

MAX_TRIES = 2


@dataclass(slots=True)
class Results:
    """What the result files of one batch say: by custom id, but for the answers."""

    answered: set[str] = field(default_factory=set)
    problems: dict[str, Exception] = field(default_factory=dict)
    strange: int = 0


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Reads the results of batches; the answers go to the journal first of all."""

    lines: BatchLines
    requests: BatchRequests

    def read(
        self,
        record: BatchRecord,
        asked: Mapping[str, SentRequest],
        files: Sequence[Path],
        journal: Journal,
        todo: Todo | None,
    ) -> Results:
        """Journal the answers in result files, and return what else they say.

        Args:
            record: The batch.
            asked: Its requests by custom id.
            files: Answers first: an error to a request that has an answer does not count.
            journal: Takes the answers.
            todo: Takes repairs of answers that cannot be read; None for no repairs.
        """
        results = Results()
        for line in read_lines(files):
            one = asked.get(str(line.get("custom_id")))
            if one is None or one.custom_id in results.answered:
                results.strange += 1
                continue
            try:
                completion = self.lines.completion(line, record.mode)
            except (LaterError, FormatRefusedError, LlmError, LlmStopError) as problem:
                results.problems.setdefault(one.custom_id, problem)
                continue
            results.answered.add(one.custom_id)
            self._take(one, completion, journal, todo)
        if results.strange:
            logger.warning(
                "batch %s: %d lines are of no request, or repeat one; ignored",
                record.batch_id,
                results.strange,
            )
        return results

    def settle(
        self,
        record: BatchRecord,
        state: BatchState,
        asked: Mapping[str, SentRequest],
        results: Results,
        todo: Todo | None,
    ) -> LlmStopError | None:
        """Note what becomes of the requests without an answer; return what ends the run.

        A batch that was refused as a whole because of the mode of structured output is asked again
        in a simpler one; it does not count as a try, nor does a full queue while others get
        through.

        Args:
            record: The batch.
            state: How it ended.
            asked: Its requests by custom id.
            results: From `read`.
            todo: Takes what is to be asked again; None where that is not this run's business.
        """
        left = [one for one in asked.values() if one.custom_id not in results.answered]
        unsaid = LaterError(f"not answered by a batch that is {state.status}")
        problems = [results.problems.get(one.custom_id, unsaid) for one in left]
        try:
            self.lines.check(state, record.mode)
        except LlmStopError as error:
            return error
        except FormatRefusedError as error:
            problems = [error] * len(left)
        is_refused = self._step_down(record, problems, count=len(asked))
        if todo is None:
            return None
        is_free = is_refused or (state.is_queue_full and todo.paid > 0)
        for one, problem in zip(left, problems, strict=True):
            if is_free:
                todo.add(one, tries=one.tries)
            elif isinstance(problem, LaterError) and one.tries < MAX_TRIES:
                todo.add(one, tries=one.tries + 1)
            elif not isinstance(problem, LlmStopError):
                self.requests.fail(one, _failure(problem, one.tries))
        return next((p for p in problems if isinstance(p, LlmStopError)), None)

    def _step_down(self, record: BatchRecord, problems: Sequence[Exception], *, count: int) -> bool:
        """Go to a simpler mode where every request of a batch was refused because of its own."""
        refused = [p for p in problems if isinstance(p, FormatRefusedError)]
        if not refused or len(refused) < count:
            return False
        self.lines.format.step_down(record.mode, refused[0].cause)
        return True

    def _take(
        self, one: SentRequest, completion: Completion, journal: Journal, todo: Todo | None
    ) -> None:
        """Journal one answer; have it repaired once where it cannot be read."""
        problem = ""
        try:
            parse_answer(
                completion.text,
                completion.finish_reason,
                output=one.output,
                source_ids=one.source_ids,
                max_questions=self.requests.call.prompts.max_questions,
            )
        except LlmError as error:
            problem = str(error)
        answer = {
            "is_usable": not problem,
            "finish_reason": completion.finish_reason,
            "response": clean_text(completion.text),
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
        }
        journal.append({**one.row, **answer})
        if todo is None:
            return
        todo.paid += 1
        if problem.startswith(MALFORMED) and not one.problem and completion.text.strip():
            todo.add(self.requests.repair(one, problem, completion.text), tries=1)
        elif problem:
            self.requests.fail(one, problem)


def _failure(problem: Exception, tries: int) -> str:
    if isinstance(problem, LaterError):
        return f"{UNAVAILABLE}: {problem}, in {tries} batches"
    if isinstance(problem, FormatRefusedError):
        return f"{REFUSED}: {problem}"
    return str(problem)
