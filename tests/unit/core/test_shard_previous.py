"""What a version takes over from the one before gives the bytes that writing it anew gives."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hltm_spark.core import shard_files
from hltm_spark.core.errors import DataError
from hltm_spark.core.shard import publish_version, tenant_folder
from hltm_spark.core.shard_previous import PreviousVersion
from hltm_spark.core.shard_writer import ShardWriter
from tests.shards import DIMENSION, shard_node, shard_settings, write_shard

EVIDENCE = {"evidence": {"enabled": True}}
WORDS = st.sampled_from(["", "Oulu", "東京 😀", "hybrid since March", "!?!"])
NODE = st.fixed_dictionaries(
    {
        "summary": WORDS,
        "facets": st.dictionaries(st.sampled_from(["location", "mode"]), WORDS, max_size=2),
        "questions": st.dictionaries(WORDS, WORDS, max_size=2),
        "documents": st.dictionaries(st.sampled_from(["d1", "d2", "d3"]), WORDS, max_size=3),
    }
)
VERSION = st.dictionaries(st.sampled_from([f"{n:02}" for n in range(12)]), NODE, max_size=12)


def nodes_of(version: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a tenant and its children in tree order."""
    children = [shard_node("acme", key, **version[key]) for key in sorted(version)]
    return [shard_node("acme", summary="All of it."), *children]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return every file of a version but the provenance."""
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "provenance.json"}


def published(shards: Path, staged: Path) -> PreviousVersion | None:
    """Publish a staged version and open it as the previous one."""
    publish_version(shards, "acme", staged, version="v1", keep=3, provenance={})
    return PreviousVersion.open(shards, "acme")


@pytest.mark.parametrize(("batch_rows", "views"), [(1, {}), (3, EVIDENCE), (1024, EVIDENCE)])
@settings(max_examples=20)
@given(before=VERSION, after=VERSION, kept=st.sets(st.sampled_from([f"{n:02}" for n in range(12)])))
def test_unchanged_nodes_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    batch_rows: int,
    views: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
    kept: set[str],
) -> None:
    scratch = tmp_path_factory.mktemp("shard")
    after |= {key: before[key] for key in kept & before.keys()}
    levels = [{"name": "contract"}, {"name": "seat"}]
    conf = shard_settings(levels=levels, views=views)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_files, "BATCH_ROWS", batch_rows)
        staged = write_shard(scratch / "before", nodes_of(before), conf)
        previous = published(scratch / "shards", staged)
        assert previous is not None

        anew = write_shard(scratch / "anew", nodes_of(after), conf)
        taken = write_shard(scratch / "taken", nodes_of(after), conf, previous=previous)

    assert bytes_of(taken) == bytes_of(anew)
    shutil.rmtree(scratch)


def test_a_version_taken_over_whole_is_the_same(tmp_path: Path) -> None:
    nodes = [
        shard_node("acme", f"{n:05}", summary=f"Node {n}.", facets={"n": str(n)})
        for n in range(2500)
    ]
    staged = write_shard(tmp_path / "before", nodes)
    previous = published(tmp_path / "shards", staged)

    taken = write_shard(tmp_path / "taken", nodes, previous=previous)

    assert bytes_of(taken) == bytes_of(write_shard(tmp_path / "anew", nodes))


@pytest.mark.parametrize("damage", ["nothing published", "cut file", "other tenant"])
def test_a_version_that_cannot_be_trusted_is_not_taken_over(tmp_path: Path, damage: str) -> None:
    shards = tmp_path / "shards"
    if damage != "nothing published":
        assert published(shards, write_shard(tmp_path / "v", nodes_of({}))) is not None
    tenant = shards / tenant_folder("acme")
    if damage == "cut file":
        (tenant / "v1" / "facets.faiss").write_bytes(b"IxFI")
    elif damage == "other tenant":
        tenant.rename(shards / tenant_folder("globex"))

    assert PreviousVersion.open(shards, "globex" if damage == "other tenant" else "acme") is None


def test_a_node_that_the_previous_version_lacks_is_an_error(tmp_path: Path) -> None:
    previous = published(tmp_path / "shards", write_shard(tmp_path / "v", nodes_of({})))

    def add(version: PreviousVersion | None, *keys: str) -> None:
        with ShardWriter(
            tmp_path / f"{bool(version)}-{len(keys)}",
            tenant_id="acme",
            embedding_model="m",
            dimension=DIMENSION,
            settings=shard_settings(),
            previous=version,
        ) as writer:
            writer.add_unchanged(keys, {"level": "contract", "fingerprint": "other"})

    with pytest.raises(DataError, match="no rows of 'acme' to take over"):
        add(previous, "acme")
    with pytest.raises(DataError, match="no rows of 'acme/01' to take over"):
        add(previous, "acme", "01")
    with pytest.raises(DataError, match="no previous version to take 'acme' from"):
        add(None, "acme")
