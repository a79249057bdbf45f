"""A standalone cluster of two hosts that are loopback addresses: a task can have a twin.

Spark starts no speculative attempt on a host that has one of the same task already, so that neither
`local` nor `local-cluster` shows any.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from hltm_spark.pipeline.java import find_java_home, wrap_java
from tests.spark.kill_rig import REPOSITORY
from tests.spark.victims import stop

HOSTS = ("127.0.0.2", "127.0.0.3")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: Its URL.
        pids: Processes of its hosts; their executors and Python workers are below them.
    """

    master: str
    pids: tuple[int, ...]


@contextmanager
def two_hosts(scratch: Path) -> Iterator[Cluster]:
    """Run a cluster of two hosts with a core each for the time of a with block."""
    scratch.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    started = []
    with ExitStack() as stack:
        java_home = wrap_java(find_java_home(), str(scratch))
        for name, arguments in (
            ("master.Master", ["-h", "127.0.0.1", "-p", str(port)]),
            *(("worker.Worker", ["-h", host, "-c", "1", "-m", "1g", master]) for host in HOSTS),
        ):
            process = _start(f"org.apache.spark.deploy.{name}", arguments, scratch, java_home)
            stack.callback(stop, process)
            started.append(process.pid)
        yield Cluster(master=master, pids=tuple(started[1:]))


def _start(
    name: str, arguments: list[str], scratch: Path, java_home: str
) -> "subprocess.Popen[bytes]":
    spark = Path(pyspark.__file__).parent
    with (scratch / "cluster.log").open("ab") as log:
        return subprocess.Popen(
            [str(spark / "bin" / "spark-class"), name, "--webui-port", "0", *arguments],
            env={**os.environ, **_environment(scratch, spark), "JAVA_HOME": java_home},
            stdout=log,
            stderr=log,
        )


def _environment(scratch: Path, spark: Path) -> Mapping[str, str]:
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        "SPARK_HOME": str(spark),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
    }
