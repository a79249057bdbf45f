"""One request, answered and validated; cut off or unreadable answers are asked for once more."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hltm_spark.core.errors import LlmError
from hltm_spark.core.escaping import escape_text
from hltm_spark.core.prompts import OUTPUTS, Prompt, load_prompt
from hltm_spark.models.llm import MALFORMED, TRUNCATED, Completion, LlmClient, Request
from hltm_spark.models.parsing import ParsedAnswer, parse_answer

REPAIR = "repair/response"
EXTRACTIVE = "extractive"
LARGER = 2
"""Times the output limit for an answer that was cut off."""

OnCompletion = Callable[[Request, Completion, bool], None]
"""Told of every paid answer as it arrives: request, answer, and whether it could be used."""


def ask(
    client: LlmClient,
    request: Request,
    *,
    source_ids: Sequence[str],
    on_completion: OnCompletion,
    max_questions: int | None = None,
    repair: Prompt | None = None,
) -> ParsedAnswer:
    """Return the validated answer to a request.

    An answer that was cut off at the output limit is asked for once more with a larger one. A
    malformed answer is sent back once, to be written again as the JSON that was asked for; not so a
    filtered or refused one, and never the extractive provider's.

    Args:
        client: Any provider.
        request: What to ask.
        source_ids: Ids that the prompt showed.
        on_completion: Called for every answer before a parsing error is raised; the caller keeps
            it, also one that could not be used.
        max_questions: Question-answer pairs beyond this are left out.
        repair: The repair prompt; the shipped one where not given (executors read no files).

    Raises:
        LlmError: No usable answer; kinds as in `models.llm`.
        LlmStopError: No further request can succeed.
    """

    def answer(asked: Request) -> ParsedAnswer:
        return _complete(
            client,
            asked,
            source_ids=source_ids,
            on_completion=on_completion,
            max_questions=max_questions,
        )

    def answer_whole(asked: Request) -> ParsedAnswer:
        try:
            return answer(asked)
        except LlmError as error:
            if not str(error).startswith(TRUNCATED):
                raise
        return answer(replace(asked, output_factor=LARGER))

    try:
        return answer_whole(request)
    except _UnreadableError as error:
        if client.model == EXTRACTIVE or not error.text.strip():
            raise LlmError(str(error)) from None
        problem, text = str(error), error.text
    try:
        prompt = repair or load_prompt(REPAIR)
        return answer(repair_request(request.output, problem, text, prompt=prompt))
    except LlmError as error:
        raise LlmError(f"{problem}; after one repair: {error}") from None


class _UnreadableError(LlmError):
    """Raised, and caught, in this module only: a malformed answer together with its text."""

    text: str = ""


def _complete(
    client: LlmClient,
    request: Request,
    *,
    source_ids: Sequence[str],
    on_completion: OnCompletion,
    max_questions: int | None,
) -> ParsedAnswer:
    completion = client.complete(request)
    try:
        parsed = parse_answer(
            completion.text,
            completion.finish_reason,
            output=request.output,
            source_ids=source_ids,
            max_questions=max_questions,
        )
    except LlmError as error:
        on_completion(request, completion, False)  # noqa: FBT003  # the contract of OnCompletion
        if not str(error).startswith(MALFORMED):
            raise
        unreadable = _UnreadableError(str(error))
        unreadable.text = completion.text
        raise unreadable from None
    on_completion(request, completion, True)  # noqa: FBT003
    return parsed


def repair_request(output: str, problem: str, text: str, *, prompt: Prompt) -> Request:
    """Return the request to write a malformed answer again.

    Args:
        output: Key of `OUTPUTS`.
        problem: What parsing said of the answer.
        text: The answer.
        prompt: The repair prompt.
    """
    keys = ", ".join(f'"{key}"' for key in OUTPUTS[output])
    values = {"problem": problem, "response": escape_text(text), "keys": keys}
    system, user = prompt.render(values)
    return Request(task=prompt.prompt_id, output=output, system=system, user=user)
