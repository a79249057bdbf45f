"""What one run may spend on a language model, from conf, and whether it is spent."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.models.prices import cost


@dataclass(slots=True)
class Spent:
    """What a run has paid so far, repairs included."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Add one answer."""
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    @property
    def tokens(self) -> int:
        """Tokens of prompts and completions together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one run; without settings, none.

    Attributes:
        settings: `budgets.max_calls`, `budgets.max_tokens` and `budgets.max_cost`, and the prices.
    """

    settings: Settings | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the budget that conf gives a run.

        Raises:
            SettingsError: A cost is limited and the model has no price: the limit could not hold.
        """
        name = settings.llm.model_name
        is_free = settings.llm.provider == "extractive"
        if settings.budgets.max_cost is not None and not is_free and name not in settings.prices:
            raise SettingsError(
                f"budgets.max_cost {settings.budgets.max_cost} needs the price of model {name!r}, "
                f"conf has prices of {sorted(settings.prices)}; add [prices.{json.dumps(name)}] "
                "with prompt and completion, or limit calls or tokens"
            )
        return cls(settings=settings)

    @property
    def is_limited(self) -> bool:
        """Tell whether anything is limited."""
        return bool(self._limits(Spent()))

    def reached(self, spent: Spent) -> str:
        """Return the budget that allows no further call, such as `budgets.max_calls 10`, or ''."""
        return next((name for name, used, limit in self._limits(spent) if used >= limit), "")

    def exceeded(self, spent: Spent) -> tuple[str, ...]:
        """Return every budget that a run with these sums would have gone beyond."""
        return tuple(name for name, used, limit in self._limits(spent) if used > limit)

    def calls_left(self, spent: Spent, *, wanted: int) -> int:
        """Return how many of the wanted calls `budgets.max_calls` still allows."""
        limit = self.settings.budgets.max_calls if self.settings else None
        return wanted if limit is None else max(0, min(wanted, limit - spent.calls))

    def room(self, spent: Spent, sizes: Sequence[int], *, in_flight: Sequence[int]) -> int:
        """Return how many requests go out until those in flight may use the budget up.

        An answer is taken to be as long as they were on average, the first ones as long as
        `llm.max_output_tokens`. One request too many is among them: without it no budget would
        ever be reached.

        Args:
            spent: What was paid.
            sizes: Prompt tokens of each request, about, in the order in which they go out.
            in_flight: Prompt tokens of requests that are not answered yet.
        """
        if self.settings is None:
            return len(sizes)
        answer = self.settings.llm.max_output_tokens
        if spent.calls:
            answer = spent.completion_tokens // spent.calls
        expected = replace(spent)
        for size in in_flight:
            expected.add(size, answer)
        for count, size in enumerate(sizes):
            if self.reached(expected):
                return count
            expected.add(size, answer)
        return len(sizes)

    def _limits(self, spent: Spent) -> list[tuple[str, float, float]]:
        """Return (name with limit, used, limit) of every limit that is set and holds."""
        if self.settings is None:
            return []
        budgets = self.settings.budgets
        price = cost(self.settings, spent.prompt_tokens, spent.completion_tokens)
        used = {"max_calls": spent.calls, "max_tokens": spent.tokens, "max_cost": price}
        if self.settings.llm.provider == "extractive":
            used = {"max_calls": spent.calls}  # it costs nothing and counts no tokens
        limits = {name: getattr(budgets, name) for name in used}
        return [
            (f"budgets.{name} {limit}", used[name], limit)
            for name, limit in limits.items()
            if limit is not None
        ]
