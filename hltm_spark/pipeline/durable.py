"""Files that survive a power loss once a call returns."""

import os
from contextlib import suppress
from pathlib import Path


def write_synced(file: Path, text: str) -> None:
    """Write a file, its content on disk when this returns."""
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def sync_file(file: Path) -> None:
    """Bring a file's content to disk that was written before."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to disk, where the file system can."""
    with suppress(OSError):
        sync_file(folder)
