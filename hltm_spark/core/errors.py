"""Typed errors of hltm-spark.

Every error takes one message string, so that it survives a process border (executors raise in
another process). Messages name ids, lengths and settings, never document text.
"""

from collections.abc import Mapping
from typing import Any


class HltmError(Exception):
    """Base of every error that hltm-spark raises on purpose."""


class SettingsError(HltmError):
    """Raised when a configuration file, an override or an option is wrong (exit code 2)."""


class DataError(HltmError):
    """Raised when an input as a whole cannot be taken; bad rows become rejects (exit code 2)."""


class EnvironmentProblem(HltmError):
    """Raised when this machine lacks something: Java, a jar, an extra, a key (exit code 2)."""


class PromptError(SettingsError):
    """Raised when a prompt file is missing or its header and text disagree."""


class MissingExtraError(EnvironmentProblem):
    """Raised when an optional dependency is used without its extra being installed."""

    @classmethod
    def for_extra(cls, *, package: str, extra: str, used_by: str) -> "MissingExtraError":
        """Name the package, the extra that brings it, and what needed it."""
        return cls(
            f"{used_by} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'hltm-spark[{extra}]'"
        )


class LlmError(HltmError):
    """Raised when one request did not get a usable answer; its node fails alone.

    The message starts with the kind of failure: `kind: detail`. Kinds are the constants in
    `hltm_spark.models.llm`.
    """


class EndpointDownError(LlmError):
    """Raised when the endpoint stayed down while a run waited for it: the run can go on later."""


class LlmStopError(HltmError):
    """Raised when no further request can succeed: bad key, unknown model, exhausted quota.

    What was paid until then is kept (exit code 2: another try alone does not help).
    """


class EmbeddingError(HltmError):
    """Raised when an embedding endpoint or model returns something that cannot be stored."""


class StoppedError(HltmError):
    """Base of what ends a run early with everything so far kept: run it again (exit code 3)."""


class FollowStoppedError(StoppedError):
    """Raised when a signal ended `update --follow` between two cycles."""


class BudgetReachedError(StoppedError):
    """Raised when a run used up `budgets.max_calls`, `max_tokens` or `max_cost`.

    Attributes:
        summary: The run as the command line prints it as JSON; empty where there was none.
    """

    summary: Mapping[str, Any] = {}


class BatchesLeftError(StoppedError):
    """Raised when a run ends while batches of it are at the provider: the next collects them."""


class LeaseHeldError(StoppedError):
    """Raised when another run on the same storage root did not end while this one waited."""


class LeaseLostError(StoppedError):
    """Raised when a run may write no more, because its lease lapsed or was taken over."""


class TooManyFailuresError(HltmError):
    """Raised when so many nodes failed that shards stay as they were; a later run may do better."""


class ReaderError(HltmError):
    """Base of the errors that the reader raises."""


class ShardNotFound(ReaderError):
    """Raised when a tenant has no published shard, or the shards folder does not exist."""


class ShardCorrupt(ReaderError):
    """Raised when a shard's files and its manifest disagree."""


class ScopeNotFound(ReaderError):
    """Raised when a node id names no node that this reader may open."""


class EmbeddingMismatch(ReaderError):
    """Raised when the reader's embedder is not the one that wrote the shard."""
