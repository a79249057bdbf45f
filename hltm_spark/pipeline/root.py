"""The storage root: its folders and the salt that hides ids in table statistics."""

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hltm_spark.core.errors import SettingsError

FORMAT_VERSION = 1
_PLAN_AGE_S = 24 * 3600
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")  # paths are taken for URLs where the log is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A storage root that was opened.

    Attributes:
        path: Absolute path.
        salt: Secret of this root: hashes of ids cannot be compared with another root's.
    """

    path: str
    salt: str

    def folder(self, *parts: str) -> Path:
        """Return a folder or file under the root."""
        return Path(self.path).joinpath(*parts)

    @property
    def shards(self) -> Path:
        """Folder of the published shards."""
        return self.folder("shards")

    def staging(self, run_id: str) -> Path:
        """Folder of one run's intermediate rows."""
        return self.folder("staging", run_id)

    def journal(self) -> Path:
        """Folder of answers that are not in the ledger yet."""
        return self.folder("journal")

    def batches(self) -> Path:
        """Folder of the batches that are at the provider."""
        return self.folder("batches")

    def clear_staging(self, run_id: str) -> None:
        """Remove one run's intermediate rows."""
        shutil.rmtree(self.staging(run_id), ignore_errors=True)

    def clear_dead_staging(self) -> None:
        """Remove what runs that died left: they hold documents that may be deleted since.

        Only the holder of the lease may call it, before it stages anything. A plan works without
        the lease, so its folder stays for a day.
        """
        for folder in self.folder("staging").glob("*"):
            age_s = time.time() - folder.stat().st_mtime
            if not folder.name.startswith("plan-") or age_s > _PLAN_AGE_S:
                shutil.rmtree(folder, ignore_errors=True)

    def publishing(self, run_id: str) -> str:
        """Return the folder with the tenants that one run is about to publish."""
        return str(self.folder("publishing", run_id))

    def unfinished_publishing(self) -> list[str]:
        """Return those folders of runs that died while they published."""
        return [str(folder) for folder in sorted(self.folder("publishing").glob("*"))]


def open_root(path: str, *, levels: Sequence[str] | None = None, must_exist: bool = False) -> Root:
    """Return the root at a path, made where there is none.

    Args:
        path: Folder.
        levels: Level names of the conf; a root keeps those that it was made with.
        must_exist: Refuse to make a new one.

    Raises:
        SettingsError: No path is set, it cannot be one, nothing can be kept there, or the folder
            holds a root of other levels or of a newer format.
    """
    folder = _folder_of(path)
    file = folder / "root.json"
    try:
        if must_exist and not file.exists():
            raise SettingsError(
                f"no storage root in {folder}; pass another --root, or make one with `hltm ingest`"
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            made = {"format_version": FORMAT_VERSION, "salt": secrets.token_hex(16)}
            _write_once(file, {**made, "levels": list(levels or ())})
        content = json.loads(file.read_text(encoding="utf-8"))
        version, salt = content["format_version"], content["salt"]
    except OSError as error:
        raise SettingsError(
            f"cannot keep a storage root in {folder}: {error.strerror}; pass another --root"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{file} is damaged; put it back from a backup") from error
    if version != FORMAT_VERSION:
        raise SettingsError(
            f"{file} has format version {version!r}, this release reads {FORMAT_VERSION}; "
            "upgrade hltm-spark"
        )
    kept = content.get("levels")
    if kept and levels and kept != list(levels):
        raise SettingsError(
            f"{folder} was made with the levels {'/'.join(kept)}, the conf has "
            f"{'/'.join(levels)}; pass the conf that it was made with, or another --root"
        )
    return Root(path=str(folder), salt=salt)


def _folder_of(path: str) -> Path:
    if not path:
        raise SettingsError("storage.root is empty; pass --root DIR or set it in the conf file")
    folder = Path(path).expanduser().resolve()
    if _ESCAPE.search(str(folder)):
        raise SettingsError(
            f"the path of a storage root must hold no escape such as %20, got {str(folder)!r}; "
            "pass another --root"
        )
    return folder


def _write_once(file: Path, content: dict[str, object]) -> None:
    """Write a file that a second process starting now must not replace."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content), encoding="utf-8")
    try:
        os.link(scratch, file)
    except FileExistsError:
        pass
    finally:
        scratch.unlink()
