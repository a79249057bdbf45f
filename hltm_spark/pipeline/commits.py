"""Commits of one run, fenced by its lease.

Every commit carries the lease's epoch and a number within the run as Delta's `txnVersion`. A run
that was suspended, lost its lease and woke up has an epoch below the one that was committed last:
Delta skips its commit, and the check afterwards says so.
"""

from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from hltm_spark.pipeline.lease import Lease
from hltm_spark.pipeline.tables import Table

_CONF = "spark.databricks.delta.write."
_COMMITS_PER_RUN = 1_000_000


@dataclass(slots=True)
class Commits:
    """Writes tables under a lease.

    Attributes:
        lease: The run's lease; its epoch numbers the commits.
    """

    spark: SparkSession
    root: str
    lease: Lease
    _count: int = field(default=0)

    def append(self, table: Table, rows: DataFrame) -> None:
        """Add rows to a table.

        Raises:
            LeaseLostError: Another run took over; nothing was written.
        """
        with self._fenced():
            table.append(rows, self.root)

    def merge(self, table: Table, rows: DataFrame, *, delete_when: str) -> None:
        """Merge rows into a table, as `Table.merge` does.

        Raises:
            LeaseLostError: Another run took over; nothing was written.
        """
        with self._fenced():
            table.merge(rows, self.root, delete_when=delete_when)

    def _fenced(self) -> "_Fence":
        self._count += 1
        version = self.lease.epoch * _COMMITS_PER_RUN + self._count
        return _Fence(self.spark, self.lease, version)


@dataclass(frozen=True, slots=True)
class _Fence:
    spark: SparkSession
    lease: Lease
    version: int

    def __enter__(self) -> None:
        self.lease.check()
        self.spark.conf.set(f"{_CONF}txnAppId", f"hltm-{self.lease.series}")
        self.spark.conf.set(f"{_CONF}txnVersion", str(self.version))

    def __exit__(self, *_: object) -> None:
        self.spark.conf.unset(f"{_CONF}txnAppId")
        self.spark.conf.unset(f"{_CONF}txnVersion")
        self.lease.check()
