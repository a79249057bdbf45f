"""What the pipeline and the reader need of a language model, whatever the provider.

A client answers one rendered request and returns what the provider said, unparsed; parsing and
validation are `hltm_spark.models.parsing`, so that every provider is judged by the same rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hltm_spark.core.records import NodeInput

TRUNCATED = "truncated"
FILTERED = "filtered"
MALFORMED = "malformed"
TOO_LONG = "too_long"
UNAVAILABLE = "unavailable"
REFUSED = "refused"
FAILURE_KINDS = (TRUNCATED, FILTERED, MALFORMED, TOO_LONG, UNAVAILABLE, REFUSED)
"""How one request can fail: LlmError messages start with `<kind>: `.

truncated: cut off at the output limit. filtered: stopped by a content filter. malformed: not the
JSON that was asked for, also after one repair. too_long: the input exceeds the model's context.
unavailable: temporary errors until the tries ran out. refused: any other error for this request.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a model.

    Attributes:
        task: Prompt id, such as `leaf/facets` or `query/answer`.
        output: Key of `core.prompts.OUTPUTS`: the response keys that are wanted.
        system: Rendered system message.
        user: Rendered user message.
        payload: The same input as plain values, which only the extractive provider reads: for
            query/facets {"query"}, for query/answer {"query", "context": [{"node_id", "level",
            "view", "name", "text", ...}]}; for leaf/ and parent/ tasks `NodeInput.to_dict()`, plus
            `summary` for one_sentence_summary, left out for any other provider, and `group` where
            the node is a group of a larger one's items.
        node: What a leaf/ or parent/ task is about.
        output_factor: Times the output limit of conf: above 1 for an answer that was cut off.
    """

    task: str
    output: str
    system: str
    user: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    node: NodeInput | None = None
    output_factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a provider answered, unparsed.

    Attributes:
        text: The answer; may be empty or anything but JSON.
        finish_reason: `stop`, `length`, `content_filter`, ... as the provider names it.
        prompt_tokens: As billed; 0 where the provider does not say.
        completion_tokens: As billed; 0 where the provider does not say.
        latency_s: Seconds of the successful try.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    latency_s: float


class LlmClient(Protocol):
    """One client a process; safe to share between threads."""

    @property
    def model(self) -> str:
        """Model name as the ledger records it."""
        ...

    def complete(self, request: Request) -> Completion:
        """Answer one request.

        Raises:
            LlmError: This request failed for good (message `<kind>: <detail>`).
            LlmStopError: No further request can succeed (key, model, quota).
        """
        ...

    def close(self) -> None:
        """Release connections; the client is not used again."""
        ...
