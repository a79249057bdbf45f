"""What calls cost, from the prices in conf."""

from hltm_spark.core.config import Settings

_PER = 1_000_000


def cost(
    settings: Settings, prompt_tokens: int, completion_tokens: int, *, model: str | None = None
) -> float:
    """Return the price of tokens of a model, of the configured one where none is named.

    0.0 where conf has no price for it. In batch mode it is less by `llm.batch_discount`.
    """
    price = settings.prices.get(settings.llm.model_name if model is None else model)
    if price is None:
        return 0.0
    share = 1.0 - settings.llm.batch_discount if settings.llm.execution == "batch" else 1.0
    return share * (prompt_tokens * price.prompt + completion_tokens * price.completion) / _PER
