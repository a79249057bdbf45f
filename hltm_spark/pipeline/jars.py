"""The two Delta jars that tables addressed by path need, fetched once and checked.

They come by their coordinates, without the 30 further jars that a full resolution would bring: by
Python from Maven Central or the repository that HLTM_MAVEN names, and where that fails by the Ivy
inside PySpark, because some networks let Java through with proxies and certificates of its own.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from hltm_spark.core.errors import EnvironmentProblem, MissingExtraError
from hltm_spark.pipeline.java import JavaNotFoundError, find_java_home

REMEDY = "python -m hltm_spark.pipeline.jars"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_TIMEOUT_S = 60


class DeltaJarsMissingError(EnvironmentProblem):
    """Raised when the Delta jars are not there, or are not the expected ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One jar by its Maven coordinates, with what its file must be."""

    organisation: str
    module: str
    revision: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """Name of the file in the jars folder."""
        return f"{self.module}-{self.revision}.jar"

    @property
    def path(self) -> str:
        """Path of the file in a Maven repository."""
        folder = f"{self.organisation.replace('.', '/')}/{self.module}/{self.revision}"
        return f"{folder}/{self.file_name}"


JARS = (
    Jar(
        organisation="io.delta",
        module="delta-spark_4.1_2.13",
        revision="4.3.1",
        sha256="ebf35a4383f0a653c3ee3c7882c0edcac2f846be31ac61af4b96ccfaaf36c171",
        size=9021481,
    ),
    Jar(
        organisation="io.delta",
        module="delta-storage",
        revision="4.3.1",
        sha256="577c12c7e371be4c041714fb48e88ad86e3c3512beea2bdaffbe7a4debf79718",
        size=110970,
    ),
)


def jars_folder() -> Path:
    """Return the folder of the jars: HLTM_JARS, or one inside the Python environment."""
    default = Path(sys.prefix) / "share" / "hltm-spark" / "jars"
    return Path(os.environ.get("HLTM_JARS") or default)


def find_delta_jars() -> list[str]:
    """Return the paths of the two jars.

    Raises:
        DeltaJarsMissingError: One is missing or has another size.
    """
    folder = jars_folder()
    for jar in JARS:
        file = folder / jar.file_name
        if not file.is_file():
            raise DeltaJarsMissingError(f"no {jar.file_name} in {folder}; run: {REMEDY}")
        if file.stat().st_size != jar.size:
            raise DeltaJarsMissingError(
                f"{file} has {file.stat().st_size} bytes instead of {jar.size}; run: {REMEDY}"
            )
    return [str(folder / jar.file_name) for jar in JARS]


def fetch_delta_jars() -> None:
    """Fetch the jars that are not there yet, and check them.

    Raises:
        DeltaJarsMissingError: The Maven repository cannot be reached, a file is not the expected
            one, or the folder cannot be written.
    """
    folder = jars_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for jar in JARS:
            target = folder / jar.file_name
            if not (target.is_file() and sha256_of(target) == jar.sha256):
                _fetch(jar, target)
    except OSError as error:
        raise DeltaJarsMissingError(
            f"cannot write the jars folder {folder}: {error.strerror}; "
            "set HLTM_JARS to a folder of your own"
        ) from error


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _fetch(jar: Jar, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fetched = Path(scratch) / jar.file_name
        failed = _download(jar, fetched)
        if failed and (by_ivy := _resolve(jar, fetched)):
            raise DeltaJarsMissingError(
                f"cannot fetch {jar.organisation}:{jar.module}:{jar.revision}: {failed}\n"
                f"{by_ivy}\n"
                "check the network and its proxy, set HLTM_MAVEN to a Maven repository that you "
                f"can reach, or put the file into {target.parent} by hand"
            )
        if (got := sha256_of(fetched)) != jar.sha256:
            raise DeltaJarsMissingError(
                f"{jar.file_name} has SHA-256 {got} instead of {jar.sha256}; it was not kept"
            )
        fetched.replace(target)


def _download(jar: Jar, fetched: Path) -> str:
    """Fetch a jar by Python; return why that failed, empty where it did not."""
    url = f"{(os.environ.get('HLTM_MAVEN') or MAVEN_CENTRAL).rstrip('/')}/{jar.path}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, fetched.open("wb") as file:  # noqa: S310 - the user's own repository
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError, HTTPException) as error:
        return f"{url}: {error}"
    return ""


def _resolve(jar: Jar, fetched: Path) -> str:
    """Fetch a jar by Ivy; return why that failed, empty where it did not."""
    try:
        command = _ivy_command(jar, str(fetched.parent))
    except JavaNotFoundError as error:
        return f"nor by Ivy: {error}"
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command line
    if done.returncode or not fetched.is_file():
        return f"nor by Ivy: {(done.stdout + done.stderr).strip()}"
    return ""


def _ivy_command(jar: Jar, scratch: str) -> list[str]:
    try:
        import pyspark  # noqa: PLC0415 - only for the jar that it ships
    except ImportError as error:
        raise MissingExtraError.for_extra(
            package="pyspark", extra="spark", used_by="fetching the Delta jars"
        ) from error
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    return [
        f"{find_java_home()}/bin/java",
        f"-Divy.default.ivy.user.dir={scratch}",
        "-cp",
        str(ivy),
        "org.apache.ivy.Main",
        "-dependency",
        jar.organisation,
        jar.module,
        jar.revision,
        "-notransitive",
        "-m2compatible",
        "-types",
        "jar",
        "-cache",
        f"{scratch}/cache",
        "-retrieve",
        f"{scratch}/[artifact]-[revision].[ext]",
        "-warn",
    ]


def main() -> int:
    """Fetch the jars; 2 where that fails."""
    try:
        fetch_delta_jars()
        print(*find_delta_jars(), sep="\n")  # noqa: T201 - the answer of a small command
    except EnvironmentProblem as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
