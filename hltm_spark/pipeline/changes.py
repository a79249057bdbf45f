"""Which nodes a run looks at: from the change feed, or all of them.

The feed only names nodes. A moved document names its old and its new leaf, and content always
comes from the pinned snapshot, so nothing is folded and arrival order decides nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import DOCUMENTS

NODE = ["tenant_id", "node_id", "keys"]


def salted_key(column: str, root: Root) -> Column:
    """Return `core.tree.salted_hash` of a column, as an expression."""
    salted = F.concat(F.lit(f"{root.salt}\x00"), F.col(column))
    return F.substring(F.sha2(salted.cast("binary"), 256), 1, 32)


def changed_paths(spark: SparkSession, root: Root, *, start: int, end: int) -> DataFrame:
    """Return the nodes that documents of the window belong to or belonged to.

    Args:
        spark: Session.
        root: Storage root.
        start: First version of the window; not after `end`.
        end: Last version, the pinned one.

    Returns:
        One row per (tenant_id, node_id): keys.
    """
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", start)
        .option("endingVersion", end)
        .load(DOCUMENTS.path(root.path))
    )
    return feed.select(*NODE).distinct()


@contextmanager
def readable_feed(*, start: int, end: int) -> Iterator[None]:
    """Say in words what Delta raises on a feed that expired, was vacuumed or was never on.

    Some of it is found only when the feed is really read, so the block must do that.

    Raises:
        DataError: The feed of the window cannot be read any more.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        condition = _condition_of(error)
        switch_on = ""
        if "MISSING_CHANGE_DATA" in condition:
            switch_on = " after setting delta.enableChangeDataFeed = true on the table"
        raise DataError(
            f"the change feed of documents cannot be read from version {start} to {end} "
            f"({condition}); run `hltm index`{switch_on}, which compares every node and loses "
            "nothing"
        ) from error


def _condition_of(error: PySparkException | Py4JJavaError) -> str:
    """Return Spark's or Delta's name of an error; PySpark does not translate every one."""
    if isinstance(error, PySparkException):
        return error.getCondition() or type(error).__name__
    try:
        condition = str(error.java_exception.getCondition())
    except Py4JError:  # no error of Spark's own
        raise error from None
    if not condition.startswith(("FAILED_READ_FILE", "DELTA_")):
        raise error
    return condition


def few_paths(paths: DataFrame, *, limit: int) -> list[Row] | None:
    """Read the paths, and return them where they are at most `limit`, or None."""
    rows = paths.limit(limit + 1).collect()
    return rows if len(rows) <= limit else None


def ancestors_of(paths: DataFrame) -> DataFrame:
    """Return every node on the given paths, the paths' own nodes included.

    Returns:
        One row per (tenant_id, node_id): keys, depth (0 at the tenant), parent_id.
    """
    length = F.explode(F.sequence(F.lit(1), F.size("keys"))).alias("length")
    segments = F.split("node_id", "/")
    return (
        paths.select(*NODE, length)
        .select(
            "tenant_id",
            F.array_join(F.slice(segments, 1, F.col("length")), "/").alias("node_id"),
            F.slice("keys", 1, F.col("length")).alias("keys"),
            (F.col("length") - 1).alias("depth"),
            F.when(
                F.col("length") > 1, F.array_join(F.slice(segments, 1, F.col("length") - 1), "/")
            ).alias("parent_id"),
        )
        .dropDuplicates(["tenant_id", "node_id"])
    )


def mark_candidates(paths: DataFrame, documents: DataFrame, memory: DataFrame) -> DataFrame:
    """Return the candidates of a run with what is on record of them.

    Args:
        paths: One row per node that something happened to: NODE columns.
        documents: The pinned snapshot.
        memory: The `memory` table.

    Returns:
        One row per (tenant_id, node_id): keys, depth, parent_id, is_alive (a document is at or
        under it), is_stored, stored_fingerprint (null where it must be written again).
    """
    alive = ancestors_of(documents.select(*NODE).distinct()).select(
        "tenant_id", "node_id", F.lit(True).alias("is_alive")
    )
    stored = memory.select(
        "tenant_id",
        "node_id",
        F.lit(True).alias("is_stored"),
        F.when(F.col("status") == "complete", F.col("input_fingerprint")).alias(
            "stored_fingerprint"
        ),
    )
    node = ["tenant_id", "node_id"]
    return (
        ancestors_of(paths)
        .join(alive, node, "left")
        .join(stored, node, "left")
        .withColumn("is_alive", F.coalesce("is_alive", F.lit(False)))
        .withColumn("is_stored", F.coalesce("is_stored", F.lit(False)))
    )
