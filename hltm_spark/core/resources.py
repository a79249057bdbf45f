"""Files that travel with the package: conf/, prompts/, jobs/ and samples/.

A wheel (also one renamed to .zip on Spark's Python path) carries them inside `hltm_spark`; an
editable install does not see force-included files, so the checkout beside the package is next.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from hltm_spark.core.errors import SettingsError


def resource(name: str) -> Traversable:
    """Return a shipped file or folder, named as in the checkout: `prompts/leaf/facets.md`.

    Raises:
        SettingsError: Neither the package nor the checkout has it.
    """
    for root in (files("hltm_spark"), _checkout()):
        found = root.joinpath(*name.split("/"))
        if found.is_file() or found.is_dir():
            return found
    raise SettingsError(f"no file {name!r} comes with hltm-spark; reinstall the package")


def read_resource(name: str) -> str:
    """Return the text of a shipped file."""
    return resource(name).read_text(encoding="utf-8")


def _checkout() -> Traversable:
    return Path(__file__).resolve().parents[2]
