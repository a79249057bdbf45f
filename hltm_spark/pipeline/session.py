"""The Spark session: the one that spark-submit configured, or a local one tuned for its size."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from pyspark.sql import SparkSession

from hltm_spark.pipeline.jars import find_delta_jars
from hltm_spark.pipeline.java import find_java_home, wrap_java

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ALWAYS = {
    # event times are UTC wherever the session runs
    "spark.sql.session.timeZone": "UTC",
    # VACUUM and folder listings would start thousands of tasks
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


def make_session(app_name: str, *, extra: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with Delta.

    Under spark-submit or Spark Connect the session is the one configured there; only Delta's
    extension, where it is not set, and the time zone are added. Otherwise a local session is made.

    Args:
        app_name: Shown in Spark's own tools.
        extra: Settings over the defaults of a local session.
    """
    if _is_configured_elsewhere():
        session = SparkSession.builder.appName(app_name).config(map=DELTA).getOrCreate()
        for name, value in ALWAYS.items():
            session.conf.set(name, value)
        return session
    return _local_session(app_name, extra or {})


def _is_configured_elsewhere() -> bool:
    submitted = any(os.environ.get(n) for n in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"))
    return submitted or SparkSession.getActiveSession() is not None


def _local_session(app_name: str, extra: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # silences the host name warning
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers have this environment's packages
    scratch = tempfile.mkdtemp(prefix="hltm-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    os.environ["JAVA_HOME"] = wrap_java(find_java_home(), scratch)
    log_file = Path(scratch) / "log4j2.properties"
    log_settings = files("hltm_spark.pipeline") / "log4j2.properties"
    log_file.write_text(log_settings.read_text(encoding="utf-8"), encoding="utf-8")
    settings = {**_local_settings(scratch), **extra}
    options = f"-Dlog4j2.configurationFile=file:{log_file} -Dderby.system.home={scratch}/derby"
    given = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{options} {given}".strip()
    return SparkSession.builder.appName(app_name).config(map=settings).getOrCreate()


def _local_settings(scratch: str) -> dict[str, str]:
    cores = os.cpu_count() or 2
    return {
        **DELTA,
        **ALWAYS,
        # four tries a task, which plain local[N] does not give
        "spark.master": os.environ.get("HLTM_MASTER", f"local[{cores},4]"),
        # two jars are enough for tables addressed by path; no resolver at every start
        "spark.driver.extraClassPath": os.pathsep.join(find_delta_jars()),
        # 50 partitions for a table's state cost more than the work on small tables
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": os.environ.get("HLTM_DRIVER_MEMORY", "2g"),
        # nothing is left outside the storage root
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.local.dir": f"{scratch}/local",
    }
