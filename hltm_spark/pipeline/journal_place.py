"""Where the journals of a root are: under it, or where the conf says."""

from pathlib import Path
from urllib.parse import urlsplit

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.core.tree import salted_hash
from hltm_spark.pipeline.journal_objects import SCHEMES, ObjectStore, shown
from hltm_spark.pipeline.journal_store import FolderStore, JournalStore
from hltm_spark.pipeline.root import Root

_CHECK, _BESIDE = "CHECK", "beside"


def open_store(location: str) -> JournalStore:
    """Return the store at a path or a URL; nothing is looked at yet.

    Raises:
        SettingsError: It is a URL of an unknown kind, or one with a password.
    """
    if "://" not in location:
        return FolderStore(Path(location).expanduser().resolve())
    url = urlsplit(location)
    if url.scheme == "file":
        return FolderStore(Path(url.path))
    if url.scheme not in SCHEMES:
        raise SettingsError(
            f"storage.journal_url has the scheme {url.scheme!r}; known are a path and "
            f"{list(SCHEMES)}"
        )
    if url.password or (url.scheme == "s3" and url.username):
        raise SettingsError(
            f"storage.journal_url {shown(url)} holds a key; keys come from the environment, "
            "such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return ObjectStore(location)


def open_journals(settings: Settings, root: Root) -> JournalStore:
    """Return the place of a root's journals, a folder for each run.

    Under a URL that several roots share, each has a folder of its own: it is named by the root's
    salt and path, so that a copy of a root, which has the same salt, is told apart too.

    Raises:
        SettingsError: As `open_store`.
    """
    url = settings.storage.journal_url
    if not url:
        return FolderStore(root.journal())
    return open_store(url).within(_key(root))


def beside(settings: Settings, root: Root) -> Settings:
    """Return settings for a rebuild beside a root, whose journals no run of the root folds.

    A rebuild's root goes with the staging folder, and its journals with `clear_beside`.
    """
    url = settings.storage.journal_url
    if not url:
        return settings
    storage = {"journal_url": open_store(url).within(_BESIDE, _key(root)).location}
    return settings.model_copy(update={"storage": settings.storage.model_copy(update=storage)})


def clear_beside(settings: Settings, root: Root) -> None:
    """Remove the journals of rebuilds beside a root, also of ones that were killed."""
    if settings.storage.journal_url:
        open_store(settings.storage.journal_url).within(_BESIDE, _key(root)).clear()


def left_journals(settings: Settings, root: Root) -> list[JournalStore]:
    """Return every place that may hold answers of runs that died.

    Those under the root are among them: a run may have died before the conf named another place.
    """
    places = [FolderStore(root.journal()), open_journals(settings, root)]
    return list({place.location: place for place in places}.values())


def check_journals(settings: Settings, root: Root) -> None:
    """Return if journals can be kept where the conf says; the next fold removes what this leaves.

    Raises:
        SettingsError: It is no place for files.
        EnvironmentProblem: It cannot be reached or written.
    """
    if not settings.storage.journal_url:
        return  # the root itself was opened for writing
    store = open_journals(settings, root)
    try:
        store.write(_CHECK, "")
    except OSError as error:
        raise SettingsError(
            f"cannot keep the journal in {store.location}: {error.strerror}; "
            "set another storage.journal_url"
        ) from error


def _key(root: Root) -> str:
    return salted_hash(f"journal\x00{root.path}", salt=root.salt)
