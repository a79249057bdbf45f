"""What is different where a journal is in an object store: rolled files, requests, what is lost."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hltm_spark.core.errors import EnvironmentProblem, SettingsError
from hltm_spark.pipeline import journal_lines
from hltm_spark.pipeline.calls import Caller
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.journal_lines import RolledLines
from hltm_spark.pipeline.journal_place import check_journals, open_store
from hltm_spark.pipeline.journal_sums import read_spent
from hltm_spark.pipeline.root import open_root
from tests.builders import settings
from tests.llm_server import serve_llm
from tests.object_server import ObjectServer, serve_objects
from tests.unit.pipeline.test_calls import call_settings, requests

ANSWER = {"prompt_tokens": 100, "completion_tokens": 10}


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serve_objects() as served:
        yield served


def start(server: ObjectServer) -> Journal:
    return Journal.start(open_store(server.url("run")), stage="one", worker=0)


def test_a_file_has_64_answers_and_the_rest_is_written_at_the_end(server: ObjectServer) -> None:
    journal = start(server)

    for _ in range(150):
        journal.append(ANSWER)
    before = len(server.puts())
    journal.close()
    lines = [stream.read().count(b"\n") for stream in journal._answers.streams(journal._own())]

    assert before == 2
    assert lines == [64, 64, 22]
    assert len(server.puts()) == 3, "one request a file"


def test_an_answer_does_not_wait_for_others_for_long(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_lines, "ROLL_AGE_S", 0.02)
    journal = start(server)

    for count in (1, 2):
        journal.append(ANSWER)
        while read_spent(journal.store).calls < count:
            pass
    journal.close()

    assert len(server.puts()) == 2


KILLED = """
import os, signal, sys
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.journal_place import open_store

journal = Journal.start(open_store(sys.argv[1]), stage="one", worker=0)
for number in range(70):
    journal.append({"number": number})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_loses_only_what_was_not_written_yet(server: ObjectServer) -> None:
    died = subprocess.run(
        [sys.executable, "-c", KILLED, server.url("run")], env=os.environ, check=False
    )

    found = [answer["number"] for answer in start(server).earlier()]

    assert died.returncode == -signal.SIGKILL
    assert found == list(range(64))


def test_a_torn_last_line_does_not_spoil_the_next_file(
    server: ObjectServer, tmp_path: Path
) -> None:
    store = open_store(server.url("run"))
    store.write("a.jsonl", '{"a": 1}\n{"a": ')
    store.write("b.jsonl", '{"a": 2}\n')

    (file,) = store.on_disk(["a.jsonl", "b.jsonl", "gone.jsonl"], tmp_path / "scratch")

    assert Path(file).read_text() == '{"a": 1}\n{"a": 2}\n'


def test_a_look_for_a_stop_is_no_request_for_every_call(server: ObjectServer) -> None:
    journal = start(server)

    looks = [journal.stopped() for _ in range(500)]
    journal.close()

    assert not any(looks)
    assert len(server.requests) < 50


def test_calls_are_journalled_when_all_of_them_were_answered(server: ObjectServer) -> None:
    with serve_llm() as llm:
        call = replace(call_settings(llm, Path(), max_concurrency=4), journal=server.url("run"))
        with Caller(call) as caller:
            paid = list(caller.answers(requests(call.prompts, 70)))
            journalled = read_spent(caller.journal.store).calls

    assert len(paid) == journalled == len(llm.chats) == 70


def test_no_call_is_paid_that_could_not_be_journalled(server: ObjectServer) -> None:
    journal = start(server)
    for _ in range(63):
        journal.append(ANSWER)
    server.refused = {"PUT", "POST"}

    for attempt in (lambda: journal.append(ANSWER), journal.stopped, journal.close):
        with pytest.raises(EnvironmentProblem, match="cannot keep the journal in s3://"):
            attempt()
    server.refused = set()
    journal.close()

    assert read_spent(journal.store).calls == 64


def test_lines_are_written_once_whatever_thread_fills_a_file() -> None:
    written: dict[int, str] = {}
    lines = RolledLines(lambda number, text: written.update({number: text}))

    def work(name: int) -> None:
        for number in range(1000):
            lines.append(f"{name} {number}\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.close()

    kept = "".join(written.values()).splitlines()
    assert sorted(kept) == sorted(f"{name} {number}" for name in range(4) for number in range(1000))
    assert sorted(written) == list(range(len(written)))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://bucket/x", r"has the scheme 'foo'; known are a path and \['abfs', .*'s3'\]"),
        ("s3://me:secret@bucket/x", r"s3://bucket/x holds a key; keys come from the environment"),
        ("s3://bucket/x?wrong=secret", r"cannot be s3://bucket with its options: .*'wrong'"),
    ],
)
def test_a_wrong_url_is_said_before_anything_is_paid(tmp_path: Path, url: str, said: str) -> None:
    root = open_root(str(tmp_path))

    with pytest.raises(SettingsError, match=said) as error:
        check_journals(settings(storage={"journal_url": url}), root)

    assert "secret" not in str(error.value)


def test_a_place_that_cannot_be_written_is_said(server: ObjectServer, tmp_path: Path) -> None:
    root = open_root(str(tmp_path / "root"))
    (tmp_path / "file").touch()

    nobody = f"s3://b/x?{server.url('').partition('?')[2]}".replace(f":{server.port}", ":1")
    for url in (server.url("x", bucket="nowhere"), nobody):
        with pytest.raises(EnvironmentProblem, match=r"cannot keep the journal in s3://\S+: .*AWS"):
            check_journals(settings(storage={"journal_url": url}), root)
    with pytest.raises(SettingsError, match=r"cannot keep the journal in .*file/.*: Not a dir"):
        check_journals(settings(storage={"journal_url": str(tmp_path / "file")}), root)
    check_journals(settings(), root)
