"""A storage root is opened with what it was made for, or there is one clear error."""

from pathlib import Path

import pytest

from hltm_spark.core.errors import SettingsError
from hltm_spark.pipeline.root import open_root

LEVELS = ("contract", "seat")


def test_a_root_keeps_its_salt_and_its_levels(tmp_path: Path) -> None:
    made = open_root(str(tmp_path / "root"), levels=LEVELS)

    assert open_root(str(tmp_path / "root"), levels=LEVELS, must_exist=True) == made
    with pytest.raises(SettingsError, match="levels contract/seat, the conf has user/session"):
        open_root(str(tmp_path / "root"), levels=("user", "session"))


def test_a_root_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no storage root in .*; pass another --root"):
        open_root(str(tmp_path / "typo"), must_exist=True)

    assert list(tmp_path.iterdir()) == []


def test_no_path_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"storage.root is empty; pass --root DIR"):
        open_root("")


def test_what_cannot_hold_a_root_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")

    for place in (file, file / "below"):
        with pytest.raises(SettingsError, match=r"cannot keep a storage root in .*; pass another"):
            open_root(str(place))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged; put it back from a backup"),
        ("[]", "is damaged"),
        ('{"format_version": 1}', "is damaged"),
        ('{"format_version": 99, "salt": "x"}', "has format version 99, this release reads 1"),
    ],
)
def test_a_damaged_or_newer_root_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "root.json").write_text(content, encoding="utf-8")

    with pytest.raises(SettingsError, match=message):
        open_root(str(tmp_path))


def test_a_path_that_is_taken_for_an_escaped_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no escape such as %20"):
        open_root(str(tmp_path / "a%20b"))

    assert not (tmp_path / "a%20b").exists()
