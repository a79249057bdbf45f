"""A journal in an object store: whole files over the network, by pyarrow's own file systems."""

import logging
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from urllib.parse import SplitResult, unquote, urlsplit

from pyarrow.fs import FileSelector, FileSystem, FileType

from hltm_spark.core.errors import EnvironmentProblem, SettingsError
from hltm_spark.pipeline.journal_lines import Lines, RolledLines
from hltm_spark.pipeline.journal_store import StoredFile, whole_lines

logger = logging.getLogger("hltm_spark")

SCHEMES = ("abfs", "abfss", "gcs", "gs", "hdfs", "s3")
_AT_ONCE = 16
_BATCH = 64  # files in memory at once


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Files under a URL, each written by one request that leaves all of it or nothing.

    A value: the connection belongs to the process, the key comes from its environment.
    """

    location: str
    look_s: ClassVar[float] = 1.0

    def within(self, *names: str) -> "ObjectStore":
        """Return the part in a folder."""
        url = urlsplit(self.location)
        path = "/".join([url.path.rstrip("/"), *names])
        return ObjectStore(url._replace(path=path).geturl())

    def files(self, suffix: str) -> list[StoredFile]:
        """Return the files with a suffix, also in folders below, by name."""
        system, path = self._open()
        with self._reaching():
            found = system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        skip = len(path) + 1
        return sorted(
            StoredFile(info.path[skip:], info.size)
            for info in found
            if info.type == FileType.File and info.path.endswith(suffix)
        )

    def streams(self, names: Sequence[str]) -> Iterator[BinaryIO]:
        """Yield the content of files, read side by side; empty for a missing one."""
        if not names:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
            for begin in range(0, len(names), _BATCH):
                for content in pool.map(self._read, names[begin : begin + _BATCH]):
                    yield BytesIO(content)

    def exists(self, name: str) -> bool:
        """Tell whether there is a file."""
        system, path = self._open()
        with self._reaching():
            return bool(system.get_file_info(f"{path}/{name}").type == FileType.File)

    def write(self, name: str, content: str) -> None:
        """Write a whole file, over what was there."""
        system, path = self._open()
        with self._reaching(), system.open_output_stream(f"{path}/{name}") as stream:
            stream.write(content.encode())

    def write_new(self, name: str, content: str) -> None:
        """Write a whole file unless there is one; of two writers in one moment, one stays."""
        if not self.exists(name):
            self.write(name, content)

    def claimed(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Keep nobody away: there are no locks here."""
        return nullcontext()

    def wait_for_claims(self, *, patience_s: float) -> None:
        """Return: there are none."""

    def start_lines(self, stem: str) -> Lines:
        """Return what writes lines to files that are numbered."""
        return RolledLines(lambda number, text: self.write(f"{stem}.{number:06}.jsonl", text))

    def on_disk(self, names: Sequence[str], scratch: Path) -> list[str]:
        """Copy the whole lines of files to one on disk."""
        if not names:
            return []
        scratch.mkdir(parents=True, exist_ok=True)
        file = scratch / f"{uuid.uuid4().hex}.jsonl"
        with file.open("wb") as copy:
            for stream in self.streams(names):
                copy.writelines(whole_lines(stream))
        return [str(file)]

    def clear(self) -> None:
        """Remove every file; one that cannot be removed now stays for the next run."""
        system, path = self._open()
        try:
            with self._reaching(), suppress(FileNotFoundError):
                system.delete_dir(path)
        except EnvironmentProblem as problem:
            logger.warning("a journal is not removed yet: %s", problem)

    def _read(self, name: str) -> bytes:
        system, path = self._open()
        try:
            with self._reaching(), system.open_input_stream(f"{path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""

    def _open(self) -> tuple[Any, str]:
        url = urlsplit(self.location)
        system, base = _connect(url.scheme, url.netloc, url.query)
        return system, f"{base.rstrip('/')}/{unquote(url.path).strip('/')}".rstrip("/")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if "NO_SUCH_BUCKET" not in str(error):
                raise
            raise self._problem(error) from None
        except OSError as error:
            raise self._problem(error) from None

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"cannot keep the journal in {shown(urlsplit(self.location))}: {error}; "
            "check storage.journal_url and the key in the environment"
        )


def shown(url: SplitResult) -> str:
    """Return a URL as it may be shown: without what could be a secret."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


@lru_cache
def _connect(scheme: str, netloc: str, query: str) -> tuple[Any, str]:
    """Return the process's file system for a bucket, and the bucket's path in it.

    Raises:
        SettingsError: pyarrow takes no such URL.
    """
    problem: Exception | None = None
    for options in _options(scheme, query):
        try:
            system, path = FileSystem.from_uri(f"{scheme}://{netloc}{options}")
        except (ValueError, NotImplementedError, ImportError, OSError) as error:
            problem = error
        else:
            return system, str(path)
    url = shown(urlsplit(f"{scheme}://{netloc}"))
    raise SettingsError(f"storage.journal_url cannot be {url} with its options: {problem}")


def _options(scheme: str, query: str) -> list[str]:
    """Return the query, before it one that saves requests where pyarrow is new enough for it."""
    plain = f"?{query}" if query else ""
    if scheme != "s3":
        return [plain]
    return [f"{plain or '?'}{'&' if query else ''}allow_delayed_open=true", plain]
