import shutil
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hltm_spark.core.errors import DataError, ShardCorrupt, ShardNotFound
from hltm_spark.core.shard import (
    current_version,
    publish_version,
    read_manifest,
    remove_tenant,
    tenant_folder,
    verify_shard,
)
from hltm_spark.core.shard_writer import ShardWriter
from tests.shards import DIMENSION, publish_shard, shard_node, shard_settings, write_shard

NODES = [
    shard_node("acme", summary="all of it", facets={"city": "Turku"}),
    shard_node("acme", "s1", questions={"Where is it?": "Turku"}),
    shard_node("acme", "s1", "007", documents={"d1": "Turku office", "d2": "!!!"}),
]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "provenance.json"}


def test_index_files_are_what_faiss_would_write(tmp_path: Path) -> None:
    folder = write_shard(tmp_path / "v", NODES)
    index = faiss.read_index(str(folder / "facets.faiss"))
    again = faiss.IndexFlatIP(DIMENSION)
    again.add(index.reconstruct_n(0, index.ntotal))

    faiss.write_index(again, str(tmp_path / "again.faiss"))

    assert index.ntotal == 1
    assert (tmp_path / "again.faiss").read_bytes() == (folder / "facets.faiss").read_bytes()


def test_an_empty_view_is_a_readable_empty_index(tmp_path: Path) -> None:
    folder = write_shard(tmp_path / "v", [shard_node("acme")])

    assert faiss.read_index(str(folder / "questions.faiss")).ntotal == 0


def test_the_same_stream_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = (write_shard(tmp_path / name, NODES) for name in ("one", "other"))

    assert bytes_of(one) == bytes_of(other)


def test_a_text_without_a_vector_has_a_row_and_no_vector(tmp_path: Path) -> None:
    manifest = read_manifest(write_shard(tmp_path / "v", NODES))

    assert manifest.counts["evidence"] == 2
    assert manifest.vector_counts["evidence"] == 1


PATHS = st.lists(
    st.lists(st.sampled_from(["a", "b", "a/b", "é", "😀", "007", "~"]), min_size=1, max_size=4),
    min_size=1,
    max_size=20,
)


@given(PATHS)
def test_subtrees_are_ranges_of_rows(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]]
) -> None:
    every = {("t", *path[:n]) for path in paths for n in range(len(path) + 1)}
    ordered = sorted(every)
    levels = [{"name": f"l{n}"} for n in range(5)]
    settings = shard_settings(levels=levels)

    folder = write_shard(
        tmp_path_factory.mktemp("shard") / "v", [shard_node(*keys) for keys in ordered], settings
    )

    nodes = pa.ipc.open_file(str(folder / "nodes.arrow")).read_all().to_pylist()
    for row, keys in enumerate(ordered):
        inside = {i for i, other in enumerate(ordered) if other[: len(keys)] == keys}
        assert inside == set(range(row, nodes[row]["subtree_end"]))
        parent = nodes[row]["parent"]
        assert (ordered[parent] if parent >= 0 else ()) == keys[:-1]


@pytest.mark.parametrize("name", ["nodes.arrow", "facets.arrow", "facets.faiss", "evidence.faiss"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "swapped"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, damage: str) -> None:
    folder = write_shard(tmp_path / "v", NODES)
    other = write_shard(
        tmp_path / "w",
        [*NODES[:2], shard_node("acme", "s1", "008", documents={"d1": "Espoo", "d3": "!?!"})],
    )
    file = folder / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "changed":
        file.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    else:
        shutil.copy(other / "manifest.json", folder)

    with pytest.raises(ShardCorrupt, match=r"v/\w+\.(arrow|faiss) .*publish the tenant again"):
        verify_shard(folder, full=True)


@pytest.mark.parametrize("text", ["", "{}", '{"format_version": 99}', "[]"])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_shard(tmp_path / "v", NODES)
    (folder / "manifest.json").write_text(text)

    with pytest.raises(ShardCorrupt):
        read_manifest(folder)


def test_publishing_switches_and_keeps_the_newest_versions(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    for number in range(5):
        publish_shard(shards, *NODES, version=f"v{number}")

    tenant = shards / tenant_folder("acme")
    assert current_version(tenant) == "v4"
    assert sorted(f.name for f in tenant.iterdir() if f.is_dir()) == ["v2", "v3", "v4"]


def test_publishing_the_same_version_again_is_harmless(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    publish_shard(shards, *NODES)

    publish_version(shards, "acme", tmp_path / "gone", version="v1", keep=3, provenance={})

    assert current_version(shards / tenant_folder("acme")) == "v1"


def test_a_damaged_staged_version_is_never_switched_to(tmp_path: Path) -> None:
    shards, staged = tmp_path / "shards", write_shard(tmp_path / "staged", NODES)
    publish_shard(shards, *NODES, version="good")
    (staged / "nodes.arrow").write_bytes(b"torn")

    with pytest.raises(ShardCorrupt):
        publish_version(shards, "acme", staged, version="bad", keep=3, provenance={})

    assert current_version(shards / tenant_folder("acme")) == "good"


def test_a_removed_tenant_has_no_version(tmp_path: Path) -> None:
    publish_shard(tmp_path / "shards", *NODES)

    remove_tenant(tmp_path / "shards", "acme")

    with pytest.raises(ShardNotFound):
        current_version(tmp_path / "shards" / tenant_folder("acme"))


@pytest.mark.parametrize("pointer", ["", "..", ".", "../other", "gone", "a\\b", "\xff"])
def test_a_pointer_that_names_no_version_is_refused(tmp_path: Path, pointer: str) -> None:
    publish_shard(tmp_path / "shards", *NODES)
    tenant = tmp_path / "shards" / tenant_folder("acme")
    (tenant / "CURRENT").write_bytes(pointer.encode("latin-1"))

    with pytest.raises(ShardNotFound, match="run `hltm publish`"):
        current_version(tenant)


def test_tenant_folders_differ_where_case_is_ignored() -> None:
    names = [tenant_folder(t) for t in ("Acme", "acme", "ACME", "a/b", "東京", "é" * 200, ".")]

    assert len({name.lower() for name in names}) == len(names)
    assert all(len(name) < 60 and "/" not in name and not name.startswith(".") for name in names)


def test_rows_out_of_order_and_bad_vectors_are_errors(tmp_path: Path) -> None:
    def writer(name: str) -> ShardWriter:
        return ShardWriter(
            tmp_path / name,
            tenant_id="acme",
            embedding_model="m",
            dimension=2,
            settings=shard_settings(),
        )

    body = {"level": "contract"}
    with writer("a") as disordered:
        disordered.add("node", ("acme", "b"), body, None)
        with pytest.raises(DataError, match="comes after"):
            disordered.add("node", ("acme", "a"), body, None)
        with pytest.raises(DataError, match="does not follow its node"):
            disordered.add("facet", ("acme",), {"name": "n", "value": "v"}, None)
        with pytest.raises(DataError, match="a summary of 'acme/b' comes after a facet"):
            disordered.add("summary", ("acme", "b"), {"summary": "s"}, None)
        with pytest.raises(DataError, match="row kind 'facets' is unknown"):
            disordered.add("facets", ("acme", "b"), {}, None)

    for name, values in {"zero": [0, 0], "long": [3, 4], "nan": [np.nan, 1], "shape": [1]}.items():
        with writer(name) as bad:
            bad.add("node", ("acme",), body, None)
            vector = np.array(values, "<f4").tobytes()
            with pytest.raises(DataError, match="unit length"):
                bad.add("facet", ("acme",), {"name": "n", "value": "v"}, vector)
