from pathlib import Path
from typing import Any

import pytest

from hltm_spark.core.conf_file import load_settings, parse_settings
from hltm_spark.core.errors import SettingsError

LEVELS = {"levels": [{"name": "user"}, {"name": "session"}]}


@pytest.mark.parametrize("name", ["hiring", "conversation", "documents"])
def test_every_shipped_conf_loads_and_needs_no_key(name: str) -> None:
    settings = load_settings(f"conf/{name}.toml")

    assert settings.llm.provider == "extractive"
    assert settings.embedding.provider == "wordllama"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, r"levels is missing; add it"),
        ({"levels": []}, r"levels: .*at least 1 item"),
        ({**LEVELS, "llm": {"modle": "x"}}, r"unknown key 'modle' in \[llm\]; known keys: \['api"),
        ({**LEVELS, "retrieval": {"k_qa": 0}}, r"retrieval\.k_qa: .*greater than 0, got 0"),
        ({**LEVELS, "llm": {"provider": "openai"}}, r"llm\.model must be set for .*'openai'"),
        ({"levels": [{"name": "a"}, {"name": "a"}]}, r"level names must be distinct, \['a'\]"),
        ({"levels": [{"name": "a", "column": "text"}]}, r"input columns must be distinct"),
    ],
)
def test_a_wrong_setting_names_file_key_and_remedy(raw: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=r"^my\.toml: .*" + message):
        parse_settings(raw, name="my.toml")


def test_overrides_are_read_as_toml_or_else_as_text(tmp_path: Path) -> None:
    conf = tmp_path / "my.toml"
    conf.write_text('[[levels]]\nname = "user"\n')

    settings = load_settings(
        str(conf),
        overrides=[
            "retrieval.k_qa=3",
            "llm.provider=openai",
            "llm.model=org/m=1",
            "llm.api_version=2025-01-01",
        ],
        root="here",
    )

    assert settings.retrieval.k_qa == 3
    assert settings.llm.model == "org/m=1"
    assert settings.llm.api_version == "2025-01-01"
    assert settings.storage.root == "here"


@pytest.mark.parametrize("override", ["llm.model", "=1", "levels.x=1"])
def test_an_override_without_a_place_is_refused(override: str) -> None:
    with pytest.raises(SettingsError, match="--set"):
        load_settings("conf/hiring.toml", overrides=[override])


def test_a_missing_file_and_broken_toml_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("levels = [")

    with pytest.raises(SettingsError, match=r"no configuration file 'nowhere/x\.toml'"):
        load_settings("nowhere/x.toml")
    with pytest.raises(SettingsError, match="is not TOML"):
        load_settings(str(broken))


def test_what_is_no_readable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes("# é".encode("cp1252"))

    with pytest.raises(SettingsError, match=r"latin\.toml is not UTF-8"):
        load_settings(tmp_path / "latin.toml")
    with pytest.raises(SettingsError, match="is a folder; pass a file in it"):
        load_settings(tmp_path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    conf = tmp_path / "marked.toml"
    conf.write_text('[[levels]]\nname = "user"\n', encoding="utf-8-sig")

    assert load_settings(conf).level_names == ("user",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"retreival": {}}, "unknown key 'retreival' in the file's top level; known keys"),
        ({"llm": {"api_key": "x"}}, "secrets come from the environment variable that api_key_env"),
        ({"views": {"min_questions": 12}}, "must be at most views.max_questions 10, got 12"),
        ({"llm": {"timeout_s": float("inf")}}, "llm.timeout_s: input should be a finite number"),
    ],
)
def test_a_fault_comes_with_its_remedy(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings({"levels": [{"name": "user"}], **raw}, name="my.toml")

    assert message in str(caught.value)


def test_a_level_takes_its_key_from_its_column_or_its_name() -> None:
    settings = parse_settings({"levels": [{"name": "user", "column": "uid"}]}, name="x")

    assert settings.levels[0].key_column == "uid"
    assert settings.level_names == ("user",)
