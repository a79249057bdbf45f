"""The Spark session: the one that spark-submit configured, or a local one tuned for its size."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hltm_spark.pipeline.jars import JARS, REMEDY, DeltaJarsMissingError, find_delta_jars
from hltm_spark.pipeline.java import find_java_home, wrap_java

CATALOG = "spark.sql.catalog.spark_catalog"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# event times are UTC wherever the session runs
TIME_ZONE = {"spark.sql.session.timeZone": "UTC"}
# a row may hold a whole prompt's input, some hundred kilobytes: thousands of them in one batch, as
# the defaults have it, would take gigabytes a task
BATCHES = {
    "spark.sql.parquet.columnarReaderBatchSize": "128",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
}


def make_session(app_name: str, *, extra: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with Delta.

    Under spark-submit, under Spark Connect, or where a session is active, it is the one configured
    there; only Delta's extension and catalog, where they are not set, the time zone, and what
    bounds a batch of rows are added.
    Otherwise a local session is made.

    Args:
        app_name: Shown in Spark's own tools.
        extra: Settings over the defaults of a local session.

    Raises:
        JavaNotFoundError: A local session finds no Java that fits.
        DeltaJarsMissingError: The session has no Delta.
    """
    if _is_running():
        session = SparkSession.builder.getOrCreate()
        # the extension cannot be added to what runs already
        if session.conf.get(CATALOG, None) in {None, "builtin"}:
            session.conf.set(CATALOG, DELTA[CATALOG])
    elif os.environ.get("PYSPARK_GATEWAY_PORT"):
        session = _build(app_name, _unset_by_submit(DELTA))
    else:
        return _local_session(app_name, extra or {})
    for name, value in {**TIME_ZONE, **BATCHES}.items():
        session.conf.set(name, value)
    _check_delta(session)
    return session


def _check_delta(session: SparkSession) -> None:
    """Raise where the catalog cannot be loaded: nobody gave this session the Delta jars."""
    try:
        session.catalog.currentDatabase()
    except (PySparkException, Py4JJavaError) as error:
        packages = ",".join(f"{jar.organisation}:{jar.module}:{jar.revision}" for jar in JARS)
        raise DeltaJarsMissingError(
            f"this Spark session has no Delta; pass --packages {packages} to spark-submit, or "
            f"--jars with the files that `{REMEDY}` prints"
        ) from error


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks run at once: the session's shuffle partitions, set to the cores."""
    return max(1, int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2))


def _is_running() -> bool:
    is_connect = any(os.environ.get(n) for n in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"))
    return is_connect or SparkSession.getActiveSession() is not None


def _unset_by_submit(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that spark-submit was not given; the builder would override it."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - SparkConf reads spark-submit's by the JVM
    submitted = SparkConf()
    return {name: value for name, value in settings.items() if not submitted.contains(name)}


def _build(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _local_session(app_name: str, extra: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # silences the host name warning
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers have this environment's packages
    jars = find_delta_jars()
    java_home = find_java_home()
    scratch = tempfile.mkdtemp(prefix="hltm-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    os.environ["JAVA_HOME"] = wrap_java(java_home, scratch)
    settings = {**_local_settings(jars, scratch), **extra}
    given = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{_java_options(scratch)} {given}".strip()
    return _build(app_name, settings)


def _java_options(scratch: str) -> str:
    """Return the options that keep the JVM quiet and its files inside the scratch folder."""
    log_file = Path(scratch) / "log4j2.properties"
    log_settings = files("hltm_spark.pipeline") / "log4j2.properties"
    log_file.write_text(log_settings.read_text(encoding="utf-8"), encoding="utf-8")
    temporary = Path(scratch) / "tmp"
    temporary.mkdir()
    options = (
        f"-Dlog4j2.configurationFile=file:{log_file}",
        f"-Dderby.system.home={scratch}/derby",
        # native libraries and Spark's own temporary folders, which a killed JVM leaves behind
        f"-Djava.io.tmpdir={temporary}",
    )
    return " ".join(f'"{option}"' for option in options)


def _local_settings(jars: Sequence[str], scratch: str) -> dict[str, str]:
    cores = os.cpu_count() or 2
    # four tries a task, which plain local[N] does not give
    master = os.environ.get("HLTM_MASTER", f"local[{cores},4]")
    # executors of their own do not have the driver's class path
    executor_jars = {} if master.startswith("local[") else {"spark.jars": ",".join(jars)}
    return {
        **DELTA,
        **TIME_ZONE,
        **BATCHES,
        **executor_jars,
        "spark.master": master,
        # two jars are enough for tables addressed by path; no resolver at every start
        "spark.driver.extraClassPath": os.pathsep.join(jars),
        # 50 partitions for a table's state cost more than the work on small tables
        "spark.databricks.delta.snapshotPartitions": "2",
        # one round of tasks a shuffle; one partition would hide faults of order
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        # partitions are as many as cores already, and every shuffle would be a job of its own
        "spark.sql.adaptive.enabled": "false",
        # a run is many small plans: compiling each to bytecode costs more than running it
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": os.environ.get("HLTM_JAVA_OPTIONS", ""),
        # VACUUM and folder listings would start thousands of tasks
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        # frames from and to pandas cross in batches, not row by row
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # nobody looks, and its server costs a second at every start
        "spark.ui.enabled": "false",
        # the progress bar would break up our own lines
        "spark.ui.showConsoleProgress": "false",
        # no port that another machine reaches, no look-up of the host's name
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # the driver's JVM does the work in local mode; 1 GB is too little for a wide parent
        "spark.driver.memory": os.environ.get("HLTM_DRIVER_MEMORY", "2g"),
        # nothing is left outside the storage root
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.local.dir": f"{scratch}/local",
    }
