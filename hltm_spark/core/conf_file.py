"""One conf file to checked settings; an error names the file, the key and the remedy.

`--set key=value` overrides one value by its dotted key.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.core.resources import read_resource


def load_settings(
    conf: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    root: str | None = None,
) -> Settings:
    """Read one conf file and apply overrides.

    Args:
        conf: Path of a TOML file; `hiring.toml` or `conf/hiring.toml` also finds the shipped one.
        overrides: `dotted.key=value`; the value is read as TOML, or else taken as text.
        root: Storage root, over what the file says.

    Raises:
        SettingsError: The file is missing, is not TOML, or holds an unknown key or a bad value.
    """
    name = os.fspath(conf)
    try:
        raw = tomllib.loads(_read(name))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name} is not TOML: {error}") from error
    for override in overrides:
        _override(raw, override)
    if root is not None:
        raw.setdefault("storage", {})["root"] = root
    return parse_settings(raw, name=name)


def parse_settings(raw: Mapping[str, Any], *, name: str) -> Settings:
    """Check settings that were read from `name`."""
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        details = [_explain(dict(item)) for item in error.errors()]
        raise SettingsError(f"{name}: " + "; ".join(details)) from None


def _read(name: str) -> str:
    path = Path(name)
    if path.is_dir():
        raise SettingsError(f"{name} is a folder; pass a file in it, e.g. --conf conf/hiring.toml")
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise SettingsError(f"{name} is not UTF-8; save it as UTF-8") from None
        except OSError as error:
            raise SettingsError(f"cannot read {name}: {error.strerror}") from error
    if path.parent in {Path(), Path("conf")}:
        try:
            return read_resource(f"conf/{path.name}")
        except SettingsError:
            pass
    raise SettingsError(f"no configuration file {name!r}; pass --conf FILE, e.g. conf/hiring.toml")


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set takes key=value, got {override!r}")
    *sections, last = key.strip().split(".")
    table = raw
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise SettingsError(f"--set {key.strip()}: {section!r} is not a section")
    table[last] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if isinstance(value, date | time) else value  # no setting is one


def _explain(item: dict[str, Any]) -> str:
    """Say one pydantic error in the project's words: key, rule, value got, what is known."""
    location = [str(part) for part in item["loc"]]
    key = ".".join(location) or "settings"
    if item["type"] == "extra_forbidden":
        section = f"[{'.'.join(location[:-1])}]" if location[:-1] else "the file's top level"
        known = f"known keys: {_known(location[:-1])}"
        if re.search("key|token|secret|password", location[-1]):
            known += "; secrets come from the environment variable that api_key_env names"
        return f"unknown key {location[-1]!r} in {section}; {known}"
    if item["type"] == "missing":
        return f"{key} is missing; add it" + (
            " ([[levels]] with name = ..., the tenant's level first)" if key == "levels" else ""
        )
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":
        return message
    return f"{key}: {message[:1].lower()}{message[1:]}, got {item['input']!r}"


def _known(sections: Sequence[str]) -> list[str]:
    model: Any = Settings
    for section in sections:
        if section.isdigit():
            continue
        field = getattr(model, "model_fields", {}).get(section)
        if field is None:
            return []
        model = _section_of(field.annotation)
    return sorted(getattr(model, "model_fields", {}))


def _section_of(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner
    return annotation
