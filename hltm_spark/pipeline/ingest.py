"""Raw input to rows of `documents`, with a reject for every row that cannot be taken.

Rows come from `inputs` as JSON objects. `to_document` judges them, without Spark; nothing is ever
inferred from a key's look.
"""

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.records import fingerprint
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.rows import to_document
from hltm_spark.pipeline.tables import DOCUMENTS, REJECTS, TEXT, arrow, create_tables, struct

logger = logging.getLogger("hltm_spark")

_CHECKED = struct({**DOCUMENTS.columns, "op": TEXT, "row": TEXT, "reason": TEXT, "raw": TEXT})


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one ingest did, in rows.

    Attributes:
        taken: Rows that were accepted; each is added, changed, unchanged or deleted.
        added: Documents that were not there before.
        unchanged: Rows whose content was there already, and deletes of what was not there.
        changed: Documents whose content differs.
        deleted: Documents removed by a delete row, or by a snapshot that lacks them.
        rejected: Rows that could not be taken; `rejects` has the reasons.
        version: Version of `documents` afterwards.
    """

    taken: int
    added: int
    unchanged: int
    changed: int
    deleted: int
    rejected: int
    version: int


def check_rows(rows: DataFrame, settings: Settings, *, salt: str) -> DataFrame:
    """Return one row per input row: the `documents` columns and `op`, or `reason` and `raw`."""
    schema = arrow(_CHECKED)

    def check(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            columns = (batch[name].to_pylist() for name in ("file", "raw", "fault"))
            checked = []
            for file, raw, fault in zip(*columns, strict=True):
                row = to_document(raw, settings, salt=salt, fault=fault)
                checked.append({**row, "row": f"{file}#{fingerprint(raw)[:16]}"})
            yield pa.RecordBatch.from_pylist(checked, schema=schema)

    return rows.mapInArrow(check, _CHECKED)


def ingest(
    rows: DataFrame,
    settings: Settings,
    root: Root,
    *,
    mode: str = "upsert",
    wait_s: float | None = None,
) -> IngestReport:
    """Bring input rows into `documents`; unchanged rows write nothing.

    Args:
        rows: Columns `file`, `raw` and `fault`, from `inputs`.
        settings: Levels and input mapping.
        root: Storage root.
        mode: `upsert`, or `snapshot`: what a tenant of the input no longer has is deleted, unless
            a row of that tenant was rejected, since the absent document may be that row.
        wait_s: Seconds to wait for another run on the root; the lease's own limit where None.

    Raises:
        LeaseHeldError: Another run on this root did not end in time.
    """
    run_id = f"ingest-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    ttl_s = settings.storage.lease_ttl_s
    with hold_lease(root, verb="ingest", run_id=run_id, ttl_s=ttl_s, wait_s=wait_s) as lease:
        root.clear_dead_staging()
        create_tables(rows.sparkSession, root.path)
        try:
            commits = Commits(rows.sparkSession, root.path, lease)
            return _Ingest(settings, root, commits, run_id).take(rows, mode=mode)
        finally:
            root.clear_staging(run_id)


@dataclass(frozen=True, slots=True)
class _Ingest:
    settings: Settings
    root: Root
    commits: Commits
    run_id: str

    def take(self, rows: DataFrame, *, mode: str) -> IngestReport:
        spark, staging = rows.sparkSession, self.root.staging(self.run_id)
        staged, outcome = str(staging / "checked"), str(staging / "outcome")
        check_rows(rows, self.settings, salt=self.root.salt).write.parquet(staged)
        checked = reject_conflicts(spark.read.schema(_CHECKED).parquet(staged))
        stored = DOCUMENTS.read(spark, self.root.path)
        changes = classify(checked, stored)
        if mode == "snapshot":
            changes = changes.unionByName(absent_documents(checked, stored))
        changes.write.parquet(outcome)
        outcomes = spark.read.schema(changes.schema).parquet(outcome)
        counts = {
            row["outcome"]: row["count"] for row in outcomes.groupBy("outcome").count().collect()
        }
        different = outcomes.where("outcome != 'unchanged'")
        if any(counts.get(name) for name in ("changed", "deleted", "absent")):
            removed = "s.outcome IN ('deleted', 'absent')"
            self.commits.merge(DOCUMENTS, different, delete_when=removed)
        elif counts.get("added"):
            self.commits.append(DOCUMENTS, different)  # nothing to match: a fraction of a MERGE
        is_taken = F.col("reason").isNull()
        depth = F.max(F.size("keys"))
        sizes = checked.groupBy(is_taken).agg(F.count("*"), depth).collect()
        taken = {row[0]: row[1] for row in sizes}
        self._check_depth(max((row[2] for row in sizes if row[0] and row[2]), default=0))
        if rejected := taken.get(False, 0):
            self._append_rejects(checked)
        changed = sum(counts.get(name, 0) for name in ("added", "changed", "deleted"))
        return IngestReport(
            taken=taken.get(True, 0),
            added=counts.get("added", 0),
            unchanged=taken.get(True, 0) - changed,
            changed=counts.get("changed", 0),
            deleted=counts.get("deleted", 0) + counts.get("absent", 0),
            rejected=rejected,
            version=DOCUMENTS.version(self.root.path),
        )

    def _check_depth(self, depth: int) -> None:
        """Warn where no row has a key of the deepest level: perhaps its column is misnamed."""
        levels = self.settings.levels
        if 0 < depth < len(levels):
            missing = levels[depth]
            logger.warning(
                "no row has a value in column %r, so no document belongs to a %s; if that is not "
                "meant, set the level's column in [[levels]]",
                missing.key_column,
                missing.name,
            )

    def _append_rejects(self, checked: DataFrame) -> None:
        """Record the rejects that are not on record yet."""
        rejects = checked.where("reason IS NOT NULL").withColumn("run_id", F.lit(self.run_id))
        known = REJECTS.read(checked.sparkSession, self.root.path).select("row", "reason")
        self.commits.append(REJECTS, rejects.join(known, ["row", "reason"], "left_anti"))


def reject_conflicts(checked: DataFrame) -> DataFrame:
    """Turn rows that contradict each other into rejects: one document twice, not the same.

    Their order in the input means nothing, so none of them can be called the newer one.
    """
    key = ["tenant_id", "doc_id"]
    state = F.concat_ws(":", "op", "content_hash")
    disputed = (
        checked.where("reason IS NULL")
        .groupBy(*key)
        .agg(F.count_distinct(state).alias("states"))
        .where("states > 1")
    )
    reason = F.concat(
        F.lit("doc_id comes "),
        F.col("states"),
        F.lit(" times with different content in one input; keep the newest row"),
    )
    raw = F.to_json(F.struct("tenant_id", "node_id", "doc_id", "op", "kind", "event_time", "text"))
    is_disputed = F.col("reason").isNull() & F.col("states").isNotNull()
    return checked.join(disputed, key, "left").select(
        *[c for c in checked.columns if c not in ("reason", "raw")],
        F.when(is_disputed, reason).otherwise(F.col("reason")).alias("reason"),
        F.when(is_disputed, raw).otherwise(F.col("raw")).alias("raw"),
    )


def classify(checked: DataFrame, stored: DataFrame) -> DataFrame:
    """Return one row per (tenant_id, doc_id) taken, with `outcome`.

    Outcomes: added, changed, unchanged, deleted, and unchanged for a delete of what is not there.
    """
    key = ["tenant_key", "tenant_id", "doc_id"]
    accepted = checked.where("reason IS NULL").dropDuplicates(["tenant_id", "doc_id"])
    before = stored.select(*key, F.col("content_hash").alias("stored_hash"))
    is_delete = F.col("op") == "delete"
    outcome = (
        F.when(is_delete & F.col("stored_hash").isNull(), "unchanged")
        .when(is_delete, "deleted")
        .when(F.col("stored_hash").isNull(), "added")
        .when(F.col("stored_hash") != F.col("content_hash"), "changed")
        .otherwise("unchanged")
    )
    return accepted.join(before, key, "left").select(*DOCUMENTS.columns, outcome.alias("outcome"))


def absent_documents(checked: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the stored documents that a snapshot lacks, with outcome `absent`.

    A tenant with a rejected row keeps all its documents, and so does every tenant when a rejected
    row names no tenant.
    """
    accepted = checked.where("reason IS NULL")
    rejected = checked.where("reason IS NOT NULL")
    spared = rejected.select("tenant_id").distinct()
    unnamed = rejected.where("tenant_id IS NULL").select(F.lit(True).alias("unnamed")).limit(1)
    return (
        stored.join(accepted.select("tenant_id").distinct(), "tenant_id", "left_semi")
        .join(spared, "tenant_id", "left_anti")
        .join(accepted.select("tenant_id", "doc_id"), ["tenant_id", "doc_id"], "left_anti")
        .join(F.broadcast(unnamed), F.lit(True), "left_anti")
        .select(*DOCUMENTS.columns, F.lit("absent").alias("outcome"))
    )
