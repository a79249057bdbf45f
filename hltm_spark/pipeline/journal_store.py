"""Where a journal is kept: a few operations on whole files, and a folder as the usual place."""

import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, Protocol

from hltm_spark.pipeline.claim import claim, wait_for_claims
from hltm_spark.pipeline.journal_lines import AppendedLines, Lines


class StoredFile(NamedTuple):
    """One file: its name, with `/` between folders, and its bytes."""

    name: str
    size: int


class JournalStore(Protocol):
    """The files of a journal, or of a part of it. Names are relative to it."""

    @property
    def location(self) -> str:
        """What `open_store` takes, on a worker too."""
        ...

    @property
    def look_s(self) -> float:
        """Seconds for which what was seen stands: a look costs a request, or nothing (0)."""
        ...

    def within(self, *names: str) -> "JournalStore":
        """Return the part in a folder."""
        ...

    def files(self, suffix: str) -> list[StoredFile]:
        """Return the files with a suffix, also in folders below, by name."""
        ...

    def streams(self, names: Sequence[str]) -> Iterator[BinaryIO]:
        """Yield files to read from, each until the next is asked for; empty for a missing one."""
        ...

    def exists(self, name: str) -> bool:
        """Tell whether there is a file."""
        ...

    def write(self, name: str, content: str) -> None:
        """Write a whole file, over what was there."""
        ...

    def write_new(self, name: str, content: str) -> None:
        """Write a whole file unless there is one."""
        ...

    def claimed(self, name: str) -> AbstractContextManager[None]:
        """Keep other processes from the same claim while the block runs, where a store can."""
        ...

    def wait_for_claims(self, *, patience_s: float) -> None:
        """Return when nothing is claimed, or after so many seconds."""
        ...

    def start_lines(self, stem: str) -> Lines:
        """Return what writes lines to one or more `.jsonl` files whose names begin so."""
        ...

    def on_disk(self, names: Sequence[str], scratch: Path) -> list[str]:
        """Return paths of files with the same lines that Spark can read.

        Args:
            names: Files of lines.
            scratch: Folder for copies, where any are needed.
        """
        ...

    def clear(self) -> None:
        """Remove every file; one that cannot be removed now stays for the next run."""
        ...


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A folder on a disk or a shared mount: files can be appended to."""

    folder: Path
    look_s: ClassVar[float] = 0.0

    @property
    def location(self) -> str:
        """The path."""
        return str(self.folder)

    def within(self, *names: str) -> "FolderStore":
        """Return the part in a folder."""
        return FolderStore(self.folder.joinpath(*names))

    def files(self, suffix: str) -> list[StoredFile]:
        """Return the files with a suffix, also in folders below, by name."""
        found = []
        for file in sorted(self.folder.rglob(f"*{suffix}")):
            with suppress(FileNotFoundError):
                if not file.is_dir():
                    name = file.relative_to(self.folder).as_posix()
                    found.append(StoredFile(name, file.stat().st_size))
        return found

    def streams(self, names: Sequence[str]) -> Iterator[BinaryIO]:
        """Yield files to read from, each until the next is asked for; empty for a missing one."""
        for name in names:
            try:
                stream: BinaryIO = (self.folder / name).open("rb")
            except FileNotFoundError:
                stream = BytesIO()
            with stream:
                yield stream

    def exists(self, name: str) -> bool:
        """Tell whether there is a file."""
        return (self.folder / name).exists()

    def write(self, name: str, content: str) -> None:
        """Write a whole file, over what was there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / f"{name}.{uuid.uuid4().hex}.part"
        scratch.write_text(content, encoding="utf-8")
        scratch.replace(self.folder / name)  # as a whole, or not at all

    def write_new(self, name: str, content: str) -> None:
        """Write a whole file unless there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), (self.folder / name).open("x", encoding="utf-8") as file:
            file.write(content)

    def claimed(self, name: str) -> AbstractContextManager[None]:
        """Keep other processes from the same claim while the block runs (`claim`)."""
        return claim(self.folder, name)

    def wait_for_claims(self, *, patience_s: float) -> None:
        """Return when nothing is claimed here or below, or after so many seconds."""
        wait_for_claims(self.folder, patience_s=patience_s)

    def start_lines(self, stem: str) -> Lines:
        """Open one file for appending."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return AppendedLines((self.folder / f"{stem}.jsonl").open("a", encoding="utf-8"))

    def on_disk(self, names: Sequence[str], scratch: Path) -> list[str]:  # noqa: ARG002
        """Return the paths of the files themselves."""
        return [str(self.folder / name) for name in names]

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def whole_lines(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends, up to one without.

    That is the last one of a process that was killed, or one that is just being written: its other
    half may come with the next read, and is no line.
    """
    for line in stream:
        if not line.endswith(b"\n"):
            return
        yield line
