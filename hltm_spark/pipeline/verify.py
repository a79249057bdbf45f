"""Does the memory equal a rebuild of the latest snapshot, row for row and byte for byte?

The rebuild is a real `index` run into a scratch root under staging/, with the same salt and the
same documents. The tables' files are linked, not copied: Delta never changes a file that is
written. Answers and vectors on record are reused unless the rebuild is to be cold, so that a
lossless memory costs no call to verify.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import BatchesLeftError, BudgetReachedError, ReaderError
from hltm_spark.core.shard import current_version, file_entry, read_manifest, tenant_folder
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.index import run_pipeline
from hltm_spark.pipeline.journal_place import beside, clear_beside
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.root import Root, open_root
from hltm_spark.pipeline.runs import Run, open_tables, read_cursor
from hltm_spark.pipeline.tables import (
    DOCUMENTS,
    EMBEDDINGS,
    LLM_CALLS,
    MEMORY,
    RUNS,
)

MAX_LISTED = 1000
"""Differences that are listed; all are counted."""

COMPARED = [name for name in MEMORY.columns if name != "run_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One node, or the shard of one tenant, that is not what a rebuild makes.

    Attributes:
        node_id: The node; the tenant of a shard.
        what: `missing`, `extra`, the columns that differ, or the shard's files that do.
    """

    node_id: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a comparison with a rebuild found.

    Attributes:
        nodes: Nodes of the rebuild.
        equal: True without any difference.
        differences: The first `MAX_LISTED`, by node.
        difference_count: All of them.
        incomplete: Stale and partial nodes, which are left aside with their tenants' shards.
        pending: Versions of `documents` that no run has applied yet.
        calls: Answers that the rebuild had to pay: 0 where all were on record.
    """

    nodes: int
    equal: bool
    differences: tuple[Difference, ...]
    difference_count: int
    incomplete: int
    pending: int
    calls: int
    seconds: float


def verify(
    spark: SparkSession,
    settings: Settings,
    root: Root,
    *,
    is_cold: bool = False,
    wait_s: float | None = None,
) -> Verification:
    """Rebuild the memory beside the one that is there, and compare.

    Args:
        spark: Session.
        settings: The conf.
        root: Storage root.
        is_cold: Reuse no answer and no vector on record; with a model that costs a full index.
        wait_s: Seconds to wait for another run on the root; the lease's own limit where None.

    Raises:
        LeaseHeldError: Another run on this root did not end in time.
        BudgetReachedError: The rebuild used up a budget of conf; nothing was compared.
        BatchesLeftError: Batches of an earlier run are at the provider.
    """
    began = datetime.now(UTC)
    run_id = f"verify-{began:%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}"
    ttl_s = settings.storage.lease_ttl_s
    with hold_lease(root, verb="verify", run_id=run_id, ttl_s=ttl_s, wait_s=wait_s) as lease:
        if any(root.batches().glob("*.json")):
            raise BatchesLeftError(  # the rebuild would pay for the same requests
                f"batches of an earlier run are on record in {root.batches()}; "
                "run `hltm update`, which collects them, then verify"
            )
        open_tables(spark, root.path)
        try:
            scratch = _scratch_root(root, run_id, is_cold=is_cold)
            commits = Commits(spark, root.path, lease)
            run = _rebuild(spark, beside(settings, root), scratch, None if is_cold else commits)
            found = _compare(spark, root, scratch)
        finally:
            root.clear_staging(run_id)
            clear_beside(settings, root)
    listed = sorted(found.differences, key=lambda d: (d.node_id, d.what))
    return Verification(
        nodes=found.nodes,
        equal=not found.count,
        differences=tuple(listed[:MAX_LISTED]),
        difference_count=found.count,
        incomplete=found.incomplete,
        pending=found.pending,
        calls=run.calls,
        seconds=round((datetime.now(UTC) - began).total_seconds(), 3),
    )


def _scratch_root(root: Root, run_id: str, *, is_cold: bool) -> Root:
    folder = root.staging(run_id) / "root"
    (folder / "tables").mkdir(parents=True)
    shutil.copy(root.folder("root.json"), folder)
    for table in (DOCUMENTS,) if is_cold else (DOCUMENTS, LLM_CALLS, EMBEDDINGS):
        shutil.copytree(table.path(root.path), table.path(str(folder)), copy_function=os.link)
    return open_root(str(folder))


def _rebuild(
    spark: SparkSession, settings: Settings, scratch: Root, commits: Commits | None
) -> Run:
    """Run `index` into the scratch root.

    Args:
        spark: Session.
        settings: The conf.
        scratch: Root with the documents alone, or with answers and vectors too.
        commits: Of the root itself, for the answers that the rebuild pays: they are never to be
            bought again. None leaves them out.
    """
    try:
        run = run_pipeline(spark, settings, scratch, kind="index")
    except BudgetReachedError as error:
        if commits and error.summary["calls"]:
            _keep_answers(spark, scratch, commits, str(error.summary["run_id"]))
        what = str(error).partition(";")[0]
        raise BudgetReachedError(
            f"the rebuild stopped, nothing was compared: {what}; raise the budget, e.g. "
            "--set budgets.max_calls=N"
        ) from None
    if commits and run.calls:
        _keep_answers(spark, scratch, commits, run.run_id)
    return run


def _keep_answers(spark: SparkSession, scratch: Root, commits: Commits, run_id: str) -> None:
    paid = LLM_CALLS.read(spark, scratch.path).where(F.col("run_id") == run_id)
    commits.append(LLM_CALLS, paid)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    nodes: int
    count: int
    incomplete: int
    pending: int
    differences: list[Difference]


def _compare(spark: SparkSession, root: Root, scratch: Root) -> _Found:
    live, rebuilt = MEMORY.read(spark, root.path), MEMORY.read(spark, scratch.path)
    incomplete = _incomplete(live).unionByName(_incomplete(rebuilt)).distinct()
    differences = compare_memories(live, rebuilt).join(
        incomplete, ["tenant_id", "node_id"], "left_anti"
    )
    rows = differences.orderBy("tenant_id", "node_id").limit(MAX_LISTED).collect()
    listed = [Difference(node_id=row["node_id"], what=row["what"]) for row in rows]
    count = differences.count() if len(rows) == MAX_LISTED else len(rows)
    spared = {row[0] for row in incomplete.select("tenant_id").distinct().collect()}
    shards = list(compare_shards(root.shards, scratch.shards, _tenants(live, rebuilt), spared))
    cursor = read_cursor(RUNS.files(root.path))
    latest = DOCUMENTS.version(root.path)
    return _Found(
        nodes=rebuilt.count(),
        count=count + len(shards),
        incomplete=incomplete.count(),
        pending=latest - cursor.version if cursor else latest,
        differences=[*listed, *shards],
    )


def compare_memories(live: DataFrame, rebuilt: DataFrame) -> DataFrame:
    """Return one row per node that differs: tenant_id, node_id, what.

    Args:
        live: `memory` rows as updates left them.
        rebuilt: `memory` rows of the rebuild.
    """
    key = ["tenant_id", "node_id"]
    columns = [name for name in COMPARED if name not in key]
    one = live.select(*key, F.struct(*columns).alias("live"))
    two = rebuilt.select(*key, F.struct(*columns).alias("rebuilt"))
    different = [
        F.when(~F.col(f"live.{name}").eqNullSafe(F.col(f"rebuilt.{name}")), F.lit(name))
        for name in columns
    ]
    what = (
        F.when(F.col("live").isNull(), "missing")
        .when(F.col("rebuilt").isNull(), "extra")
        .otherwise(F.concat_ws(", ", *different))
    )
    joined = one.join(two, key, "full_outer")
    return joined.select(*key, what.alias("what")).where("what != ''")


def compare_shards(
    live: Path, rebuilt: Path, tenants: Iterator[str], spared: set[str]
) -> Iterator[Difference]:
    """Yield the tenants whose published files are not those of the rebuild.

    Args:
        live: Folder of the published shards.
        rebuilt: The same of the rebuild.
        tenants: Every tenant of either.
        spared: Tenants with a node that is not complete.
    """
    for tenant_id in tenants:
        if tenant_id in spared:
            continue
        one, two = _shard_files(live, tenant_id), _shard_files(rebuilt, tenant_id)
        if one == two:
            continue
        if not one:
            yield Difference(node_id=tenant_id, what="shard: not published")
            continue
        names = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
        yield Difference(node_id=tenant_id, what=f"shard: {', '.join(names)}")


def _shard_files(shards: Path, tenant_id: str) -> Mapping[str, Any]:
    """Return size and sha256 of every file of a tenant's current version, as they are on disk."""
    tenant = shards / tenant_folder(tenant_id)
    try:
        folder = tenant / current_version(tenant)
        names = ["manifest.json", *read_manifest(folder).files]
    except ReaderError:
        return {}
    present = [name for name in names if (folder / name).is_file()]
    return {name: file_entry(folder / name) for name in present}


def _tenants(live: DataFrame, rebuilt: DataFrame) -> Iterator[str]:
    """Yield every tenant of either memory, one partition at a time."""
    both = live.select("tenant_id").unionByName(rebuilt.select("tenant_id")).distinct()
    return (row[0] for row in both.toLocalIterator())


def _incomplete(memory: DataFrame) -> DataFrame:
    return memory.where("status != 'complete'").select("tenant_id", "node_id")
