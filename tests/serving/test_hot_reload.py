"""A reader while versions are published and removed under it."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import serving.shard
from hltm_spark.core.shard import Manifest, tenant_folder, verify_shard
from serving import MemoryReader, ScopeNotFound, ShardCorrupt
from tests.shards import HashEmbedder, publish_shard, shard_node, shard_settings


def publish(shards: Path, number: int) -> None:
    mark = f"mark{number}"
    node = shard_node(
        "acme", summary=f"all {mark}", facets={"mark": mark}, questions={f"which {mark}?": mark}
    )
    publish_shard(shards, node, version=f"v{number}")


def reader(shards: Path) -> MemoryReader:
    return MemoryReader.open(shards, settings=shard_settings(), embedder=HashEmbedder())


def marks(memory: MemoryReader) -> set[str]:
    context = memory.scope("acme").retrieve("which mark", facets=[("mark", "mark")])
    return {hit.text.split()[-1].strip("?") for hit in context.hits}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    publish(tmp_path / "shards", 0)
    return tmp_path / "shards"


def test_a_new_version_is_seen_after_refresh_and_not_before(shards: Path) -> None:
    memory = reader(shards)
    scope = memory.scope("acme")
    publish(shards, 1)

    assert marks(memory) == {"mark0"}
    assert memory.refresh() == 1
    assert marks(memory) == {"mark1"}
    assert "mark1" in scope.show().views.summary
    assert memory.refresh() == 0


def test_a_node_or_tenant_that_is_gone_is_not_found(shards: Path) -> None:
    memory = reader(shards)
    publish_shard(shards, shard_node("acme"), shard_node("acme", "S-1"), version="v1")
    memory.refresh()
    scope = memory.scope("acme/S-1")
    publish(shards, 2)
    memory.refresh()

    with pytest.raises(ScopeNotFound):
        scope.retrieve("which mark")
    shutil.rmtree(shards / tenant_folder("acme"))
    assert memory.refresh() == 1
    with pytest.raises(ScopeNotFound):
        memory.scope("acme")


def test_a_version_that_is_removed_while_it_is_opened_gives_way_to_the_next(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def switch_first(folder: Path, *, full: bool) -> Manifest:
        if folder.name == "v0":
            publish(shards, 1)
            shutil.rmtree(folder)
        return verify_shard(folder, full=full)

    monkeypatch.setattr(serving.shard, "verify_shard", switch_first)

    assert marks(reader(shards)) == {"mark1"}


def test_a_version_from_before_a_refresh_is_not_kept(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = reader(shards)

    def refresh_meanwhile(folder: Path, *, full: bool) -> Manifest:
        manifest = verify_shard(folder, full=full)
        if folder.name == "v0":
            publish(shards, 1)
            memory.refresh()
        return manifest

    monkeypatch.setattr(serving.shard, "verify_shard", refresh_meanwhile)
    memory.scope("acme")

    assert marks(memory) == {"mark1"}


def test_a_damaged_new_version_is_an_error_and_a_version_in_use_stays(shards: Path) -> None:
    memory = reader(shards)
    scope = memory.scope("acme")
    publish(shards, 1)
    file = shards / tenant_folder("acme") / "v1" / "facets.arrow"
    file.write_bytes(file.read_bytes()[:-1])

    assert marks(memory) == {"mark0"}
    memory.refresh()
    with pytest.raises(ShardCorrupt, match=r"v1/facets\.arrow .*publish the tenant again"):
        scope.show()


def test_least_recently_used_tenants_are_closed(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        publish_shard(tmp_path / "shards", shard_node(name, summary=f"of {name}"))
    memory = MemoryReader.open(
        tmp_path / "shards", settings=shard_settings(), embedder=HashEmbedder(), max_tenants=2
    )
    scopes = [memory.scope(name) for name in ("a", "b", "a", "c")]

    assert list(memory._open) == ["a", "c"]
    assert scopes[1].show().views.one_sentence_summary == "of b"


def test_threads_see_one_version_at_a_time(shards: Path) -> None:
    memory = reader(shards)
    faults: list[Any] = []
    finished = threading.Event()

    def query() -> None:
        try:
            while not finished.is_set():
                if len(seen := marks(memory)) != 1:
                    faults.append(seen)
        except Exception as error:  # noqa: BLE001  # whatever it is, the test must see it
            faults.append(error)

    threads = [threading.Thread(target=query) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        publish(shards, number)
        memory.refresh()
    finished.set()
    for thread in threads:
        thread.join()

    assert faults == []
    assert marks(memory) == {"mark29"}
