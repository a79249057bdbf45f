"""What calls cost, from the prices in conf."""

from hltm_spark.core.config import Settings

_PER = 1_000_000


def cost(settings: Settings, prompt_tokens: int, completion_tokens: int) -> float:
    """Return the price of tokens of the configured model; 0.0 where conf has no price for it."""
    price = settings.prices.get(settings.llm.model_name)
    if price is None:
        return 0.0
    return (prompt_tokens * price.prompt + completion_tokens * price.completion) / _PER
