"""Options that every verb has, and how a verb reports."""

import functools
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hltm_spark.core.conf_file import load_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.errors import MissingExtraError

if TYPE_CHECKING:
    from hltm_spark.pipeline.root import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What the common options say: the settings, and whether the result is wanted as JSON."""

    settings: Settings
    is_json: bool

    @property
    def root(self) -> str:
        """Storage root, from --root or the conf file."""
        return self.settings.storage.root

    def open_root(self, *, must_exist: bool = True) -> "Root":
        """Open the storage root, as every verb of the pipeline does first; only `ingest` makes one.

        Raises:
            MissingExtraError: PySpark is not installed.
            SettingsError: The root cannot be used with this conf, or is not there.
        """
        if importlib.util.find_spec("pyspark") is None:
            verb = click.get_current_context().command_path
            raise MissingExtraError.for_extra(package="pyspark", extra="spark", used_by=verb)
        from hltm_spark.pipeline.root import open_root  # noqa: PLC0415 - query and show need none

        levels = self.settings.level_names
        return open_root(self.root, levels=levels, must_exist=must_exist)

    def report(self, values: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Print the result: as lines for people, or as one JSON object on the last line."""
        if self.is_json:
            click.echo(json.dumps(values, ensure_ascii=False, default=str))
        else:
            for line in lines:
                click.echo(line)


def budget_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb with the common options the limits of a run, over those of the conf file."""

    @click.option("--max-calls", type=int, metavar="N", help="Answers that one run may pay.")
    @click.option(
        "--max-tokens", type=int, metavar="N", help="Tokens, of prompts and answers, of one run."
    )
    @click.option(
        "--max-cost", type=float, metavar="X", help="Cost of one run, by the conf's prices."
    )
    @functools.wraps(verb)
    def with_budgets(*args: Any, overrides: tuple[str, ...], **values: Any) -> None:
        limits = {name: values.pop(name) for name in ("max_calls", "max_tokens", "max_cost")}
        given = [f"budgets.{name}={n}" for name, n in limits.items() if n is not None]
        verb(*args, overrides=(*overrides, *given), **values)

    return with_budgets


def common_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the common options; it gets them as its first argument, a `Call`."""

    @click.option(
        "--conf",
        default="conf/hiring.toml",
        show_default=True,
        metavar="FILE",
        help="Configuration file; a name in conf/ also finds the one that is shipped.",
    )
    @click.option("--root", default=None, metavar="DIR", help="Storage root, over storage.root.")
    @click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one setting, e.g. llm.provider=openai. May be given several times.",
    )
    @click.option("--json", "is_json", is_flag=True, help="Print the result as one JSON object.")
    @functools.wraps(verb)
    def with_settings(
        *args: Any,
        conf: str,
        root: str | None,
        overrides: tuple[str, ...],
        is_json: bool,
        **values: Any,
    ) -> None:
        settings = load_settings(conf, overrides=overrides, root=root)
        verb(Call(settings=settings, is_json=is_json), *args, **values)

    return with_settings
