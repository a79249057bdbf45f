"""The shard format: one tenant's memory as files that the reader opens without Spark.

    shards/<slug of the tenant>-<hash>/CURRENT            name of the version to read
    shards/<slug of the tenant>-<hash>/<version>/         one version, never changed
        manifest.json      counts, model, dimension, and size and sha256 of every other file
        nodes.arrow        one row a node, in tree order
        summaries.arrow facets.arrow questions.arrow evidence.arrow      one row an item, by node
        summaries.faiss facets.faiss questions.faiss evidence.faiss      flat inner-product indexes
        terms.arrow postings.arrow      the documents' own terms, where the evidence view is on
        provenance.json    run, source versions, time; outside the manifest

Rows are in tree order, so every subtree is a range of rows in every file. A version is written
whole, verified, renamed into place, and only then named by CURRENT.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hltm_spark.core.errors import ShardCorrupt, ShardNotFound

FORMAT_VERSION = 2
VIEWS = ("summaries", "facets", "questions", "evidence")
CURRENT, MANIFEST, PROVENANCE = "CURRENT", "manifest.json", "provenance.json"
_VERSION = re.compile(r"[^./\\][^/\\]*")
FAISS_HEADER_BYTES = 45
"""Length of a flat index's header; the vectors follow as float32 rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a version holds, and what its files must be.

    Attributes:
        counts: Rows of nodes and of every view.
        vector_counts: Vectors of every view; an item without a vector has a row and no vector.
        files: Size in bytes and sha256 by file name.
    """

    format_version: int
    tenant_id: str
    embedding_model: str
    dimension: int
    counts: Mapping[str, int]
    vector_counts: Mapping[str, int]
    files: Mapping[str, Mapping[str, Any]]

    def write(self, folder: Path) -> None:
        """Write the manifest, last of all files."""
        text = json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def tenant_folder(tenant_id: str) -> str:
    """Return a tenant's folder name: readable, and distinct also where case is ignored."""
    slug = re.sub(r"[^a-z0-9]+", "-", tenant_id.lower()).strip("-")[:32].rstrip("-")
    digest = hashlib.sha256(tenant_id.encode()).hexdigest()[:12]
    return f"{slug}-{digest}" if slug else digest


def file_entry(file: Path) -> dict[str, Any]:
    """Return size and sha256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"size_bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def read_manifest(folder: Path) -> Manifest:
    """Return a version's manifest.

    Raises:
        ShardCorrupt: It is missing, unreadable, or of another format version.
    """
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version = raw["format_version"]
        manifest = Manifest(**raw) if version == FORMAT_VERSION else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardCorrupt(
            f"{folder.name}/{MANIFEST} cannot be read ({type(error).__name__}); publish again"
        ) from None
    if manifest is None:
        raise ShardCorrupt(
            f"{folder.name} has shard format {version!r}, this release reads {FORMAT_VERSION}; "
            "upgrade hltm-spark or publish again"
        )
    return manifest


def verify_shard(folder: Path, *, full: bool) -> Manifest:
    """Return the manifest of a version whose files are what it says.

    Args:
        folder: The version.
        full: Compare every file's sha256; else sizes only.

    Raises:
        ShardCorrupt: A file is missing or differs.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        try:
            _verify_file(folder / name, expected, full=full)
        except OSError:  # also where a version is removed while it is looked at
            raise ShardCorrupt(
                f"{folder.name}/{name} is missing; publish the tenant again"
            ) from None
    return manifest


def _verify_file(file: Path, expected: Mapping[str, Any], *, full: bool) -> None:
    name = f"{file.parent.name}/{file.name}"
    if (size := file.stat().st_size) != expected["size_bytes"]:
        raise ShardCorrupt(
            f"{name} has {size} bytes instead of {expected['size_bytes']}; publish the tenant again"
        )
    if full and file_entry(file)["sha256"] != expected["sha256"]:
        raise ShardCorrupt(
            f"{name} is not the file that the manifest names; publish the tenant again"
        )


def read_pointer(tenant: Path) -> str:
    """Return what a tenant's CURRENT says, or an empty string where there is none."""
    try:
        return (tenant / CURRENT).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def current_version(tenant: Path) -> str:
    """Return the version that CURRENT names.

    Raises:
        ShardNotFound: The tenant has no published version.
    """
    version = read_pointer(tenant)
    if not _VERSION.fullmatch(version) or not (tenant / version).is_dir():
        raise ShardNotFound("no published version here; run `hltm publish`")
    return version


def has_versions(tenant: Path) -> bool:
    """Return whether a tenant's folder holds any version, whatever CURRENT says."""
    return tenant.is_dir() and any(f.is_dir() for f in tenant.iterdir())


def is_published(shards: Path, tenant_id: str, version: str) -> bool:
    """Return whether CURRENT names this version, and its files are what its manifest says."""
    tenant = shards / tenant_folder(tenant_id)
    return read_pointer(tenant) == version and _is_whole(tenant / version)


def publish_version(
    shards: Path,
    tenant_id: str,
    staged: Path,
    *,
    version: str,
    keep: int,
    provenance: Mapping[str, Any],
) -> None:
    """Verify a staged version, move it into place, and switch CURRENT to it in one step.

    Repeating it is harmless: a version that is in place already is verified and switched to.
    """
    tenant = shards / tenant_folder(tenant_id)
    target = tenant / version
    tenant.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not _is_whole(target):
        shutil.rmtree(target)
    if not target.is_dir():
        verify_shard(staged, full=True)
        (staged / PROVENANCE).write_text(json.dumps(dict(provenance), indent=1), encoding="utf-8")
        staged.rename(target)
    scratch = tenant / f".{CURRENT}.{os.getpid()}"
    scratch.write_text(version + "\n", encoding="utf-8")
    scratch.replace(tenant / CURRENT)
    os.utime(target)
    _remove_old(tenant, current=version, keep=keep)


def remove_tenant(shards: Path, tenant_id: str) -> None:
    """Remove every version of a tenant that has no memory any more."""
    shutil.rmtree(shards / tenant_folder(tenant_id), ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    try:
        verify_shard(folder, full=True)
    except ShardCorrupt:
        return False
    return True


def _remove_old(tenant: Path, *, current: str, keep: int) -> None:
    """Remove all but the newest versions; one that a reader has open stays readable to it."""
    versions = [v for v in tenant.iterdir() if v.is_dir() and v.name != current]
    versions.sort(key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
    for folder in versions[max(0, keep - 1) :]:
        shutil.rmtree(folder, ignore_errors=True)
