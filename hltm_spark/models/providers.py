"""The client that conf names. Heavy packages are imported only when they are chosen."""

from hltm_spark.core.config import EmbeddingSettings, Settings
from hltm_spark.models.embedders import Embedder, WordLlamaEmbedder
from hltm_spark.models.limits import CallLimiter
from hltm_spark.models.llm import LlmClient


def make_llm(settings: Settings, limiter: CallLimiter | None = None) -> LlmClient:
    """Return the client of `llm.provider`; it makes no call yet.

    Args:
        settings: The conf.
        limiter: Lets its calls through, where it calls an endpoint; one of its own if not given.

    Raises:
        EnvironmentProblem: The variable with the key is not set.
    """
    if settings.llm.provider == "extractive":
        from hltm_spark.models.extractive import ExtractiveClient  # noqa: PLC0415  # no SDK needed

        return ExtractiveClient(settings)
    from hltm_spark.models.openai_client import OpenAiClient  # noqa: PLC0415  # 1.2 s to import

    return OpenAiClient(settings.llm, limiter)


def make_embedder(settings: EmbeddingSettings) -> Embedder:
    """Return the embedder of `embedding.provider`; it makes no call yet.

    Raises:
        MissingExtraError: The provider's package is not installed.
        EnvironmentProblem: The variable with the key is not set.
    """
    if settings.provider == "wordllama":
        return WordLlamaEmbedder(settings)
    from hltm_spark.models.openai_embedder import OpenAiEmbedder  # noqa: PLC0415  # 1.2 s to import

    return OpenAiEmbedder(settings)
