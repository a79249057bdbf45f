"""The Delta jars are the expected ones or there is one clear error.

The Maven repository is a folder behind a real server; Ivy is a small script.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hltm_spark.core.errors import MissingExtraError
from hltm_spark.pipeline import jars
from hltm_spark.pipeline.jars import (
    JARS,
    DeltaJarsMissingError,
    Jar,
    fetch_delta_jars,
    find_delta_jars,
    jars_folder,
)
from hltm_spark.pipeline.java import JavaNotFoundError

CONTENT = b"a small jar"
SMALL = Jar(
    organisation="io.delta",
    module="delta-small",
    revision="1.0",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A jars folder that is not there yet, for one small jar, and no repository."""
    monkeypatch.setenv("HLTM_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("HLTM_MAVEN", "http://127.0.0.1:9")
    monkeypatch.setattr(jars, "JARS", (SMALL,))
    return tmp_path / "jars"


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[bytes], None]]:
    """A Maven repository; the function puts the small jar into it. There is no Ivy."""
    served = tmp_path / "maven"
    handler = partial(_Files, directory=str(served))
    monkeypatch.setattr(jars, "_ivy_command", lambda *_: ["/bin/sh", "-c", "exit 1"])

    def put(content: bytes) -> None:
        (served / SMALL.path).parent.mkdir(parents=True)
        (served / SMALL.path).write_bytes(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HLTM_MAVEN", f"http://127.0.0.1:{server.server_port}/")
        yield put
        server.shutdown()


@pytest.fixture
def resolve_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Make the resolver a shell script; returns the file to which it adds a line a call."""

    def use(script: str) -> Path:
        calls = tmp_path / "calls"
        calls.touch()

        def command(jar: Jar, scratch: str) -> list[str]:
            text = f"echo call >> {calls}; cd {scratch}; {script}"
            return ["/bin/sh", "-c", text.replace("JAR", jar.file_name)]

        monkeypatch.setattr(jars, "_ivy_command", command)
        return calls

    return use


def test_the_folder_is_the_environments_own_unless_hltm_jars_names_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HLTM_JARS", raising=False)

    assert jars_folder() == Path(sys.prefix) / "share" / "hltm-spark" / "jars"

    monkeypatch.setenv("HLTM_JARS", str(tmp_path))

    assert jars_folder() == tmp_path


def test_there_are_two_jars_with_full_checksums() -> None:
    assert [jar.file_name for jar in JARS] == [
        "delta-spark_4.1_2.13-4.3.1.jar",
        "delta-storage-4.3.1.jar",
    ]
    assert all(len(bytes.fromhex(jar.sha256)) == 32 and jar.size > 0 for jar in JARS)


def test_a_missing_jar_names_the_remedy(folder: Path) -> None:
    with pytest.raises(DeltaJarsMissingError) as caught:
        find_delta_jars()

    assert str(caught.value) == (
        f"no delta-small-1.0.jar in {folder}; run: python -m hltm_spark.pipeline.jars"
    )


def test_a_jar_of_another_size_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / SMALL.file_name).write_bytes(CONTENT[:-1])

    with pytest.raises(DeltaJarsMissingError, match="has 10 bytes instead of 11; run: python -m"):
        find_delta_jars()


def test_a_jar_comes_from_the_repository_that_is_named(
    folder: Path, repository: Callable[[bytes], None]
) -> None:
    repository(CONTENT)

    fetch_delta_jars()

    assert find_delta_jars() == [str(folder / SMALL.file_name)]
    assert [file.name for file in folder.iterdir()] == [SMALL.file_name]


def test_a_repository_with_another_file_is_not_believed(
    folder: Path, repository: Callable[[bytes], None]
) -> None:
    repository(b"A SMALL JAR")

    with pytest.raises(DeltaJarsMissingError, match=f"instead of {SMALL.sha256}"):
        fetch_delta_jars()

    assert list(folder.iterdir()) == []


def test_a_repository_without_the_jar_is_named_with_the_remedy(
    folder: Path, repository: Callable[[bytes], None]
) -> None:
    with pytest.raises(DeltaJarsMissingError) as caught:
        fetch_delta_jars()

    assert "/io/delta/delta-small/1.0/delta-small-1.0.jar: HTTP Error 404" in str(caught.value)
    assert "set HLTM_MAVEN to a Maven repository that you can reach" in str(caught.value)


def test_without_java_there_is_no_second_way(
    folder: Path, repository: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(*_: object) -> list[str]:
        raise JavaNotFoundError("Spark needs Java 17")

    monkeypatch.setattr(jars, "_ivy_command", no_java)

    with pytest.raises(DeltaJarsMissingError, match="nor by Ivy: Spark needs Java 17"):
        fetch_delta_jars()


def test_a_jar_is_fetched_once_and_nothing_else_is_left(
    folder: Path, resolve_to: Callable[[str], Path]
) -> None:
    calls = resolve_to("mkdir cache; printf 'a small jar' > JAR")

    fetch_delta_jars()
    fetch_delta_jars()

    assert find_delta_jars() == [str(folder / SMALL.file_name)]
    assert [file.name for file in folder.iterdir()] == [SMALL.file_name]
    assert calls.read_text(encoding="utf-8") == "call\n"


def test_a_damaged_jar_is_fetched_again(folder: Path, resolve_to: Callable[[str], Path]) -> None:
    resolve_to("printf 'a small jar' > JAR")
    folder.mkdir()
    (folder / SMALL.file_name).write_bytes(b"A SMALL JAR")

    fetch_delta_jars()

    assert (folder / SMALL.file_name).read_bytes() == CONTENT


def test_a_jar_with_another_checksum_is_not_kept(
    folder: Path, resolve_to: Callable[[str], Path]
) -> None:
    resolve_to("printf 'A SMALL JAR' > JAR")

    with pytest.raises(DeltaJarsMissingError, match=f"instead of {SMALL.sha256}"):
        fetch_delta_jars()

    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("script", ["echo 'no route' >&2; exit 1", "echo 'no route' >&2"])
def test_a_failed_fetch_shows_what_the_resolver_said(
    folder: Path, resolve_to: Callable[[str], Path], script: str
) -> None:
    resolve_to(script)

    with pytest.raises(DeltaJarsMissingError) as caught:
        fetch_delta_jars()

    assert str(caught.value).startswith("cannot fetch io.delta:delta-small:1.0: http://127.0.0.1:9")
    assert "\nnor by Ivy: no route\n" in str(caught.value)
    assert str(folder) in str(caught.value)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_clear_error(folder: Path) -> None:
    folder.write_text("a file stands here", encoding="utf-8")

    with pytest.raises(DeltaJarsMissingError, match="set HLTM_JARS to a folder of your own"):
        fetch_delta_jars()


def test_without_pyspark_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(MissingExtraError, match=r"hltm-spark\[spark\]"):
        fetch_delta_jars()

    assert list(folder.iterdir()) == []


def test_the_command_prints_the_paths_or_says_why_not(
    folder: Path, resolve_to: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    resolve_to("exit 1")

    assert jars.main() == 2
    assert "cannot fetch" in capsys.readouterr().err

    resolve_to("printf 'a small jar' > JAR")

    assert jars.main() == 0
    assert capsys.readouterr().out == f"{folder / SMALL.file_name}\n"
