"""One run at a time on a storage root, by a file lease whose epoch is a fencing number.

Files in `<root>/lease/`, all JSON, one set an epoch:

    000000000013.json       who holds epoch 13; made once, never changed
    000000000013.renewed    when the holder last gave a sign of life; replaced every ttl/4
    000000000013.released   there when the holder ended
    series                  random name of this sequence of epochs

Epoch 14 is taken by the exclusive creation of its `.json` file, which may be tried once epoch 13 is
free: released, expired, or of a dead process on this host. In an object store the creation is a
conditional PUT and the rest plain PUTs.

Why a holder that lost its lease cannot keep it by waking up: the run that takes over reads the
clock before it reads the renewal, and finds it older than the ttl; a holder that finds the same of
itself never renews again. What it may still do between its last `check` and its commit is fenced by
the epoch in the commit.
"""

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from hltm_spark.core.errors import LeaseHeldError, LeaseLostError
from hltm_spark.pipeline.durable import sync_folder, write_synced
from hltm_spark.pipeline.processes import Process, is_dead, this_process
from hltm_spark.pipeline.root import Root

logger = logging.getLogger("hltm_spark")

KEPT_EPOCHS = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
NOTHING_MORE = "so nothing more is written; what was paid is in the journal; run again"

_holding: set[tuple[str, int]] = set()  # (root, thread) of this process


class _Json(BaseModel):
    model_config = ConfigDict(frozen=True)


Content = TypeVar("Content", bound=_Json)


class Holding(_Json):
    """Who holds an epoch: the content of its `.json` file."""

    holder: Process
    verb: str
    run_id: str
    acquired_at: AwareDatetime
    expires_at: AwareDatetime

    @property
    def ttl_s(self) -> float:
        """Seconds after the last renewal at which the lease expires."""
        return (self.expires_at - self.acquired_at).total_seconds()

    def __str__(self) -> str:
        since = self.acquired_at.isoformat(timespec="seconds")
        return f"hltm {self.verb} (pid {self.holder.pid} on host {self.holder.host}, since {since})"


class Renewal(_Json):
    """A sign of life: the content of a `.renewed` file."""

    renewed_at: AwareDatetime
    expires_at: AwareDatetime


class Lease:
    """The right to write to a root, until it is released or lost.

    Attributes:
        epoch: Greater than that of every run before on this root.
        series: Epochs compare within it; a lease folder that was removed by hand begins another.
    """

    def __init__(self, folder: Path, epoch: int, holding: Holding, *, series: str) -> None:
        self.epoch, self.series = epoch, series
        self._folder = folder
        self._ttl_s = holding.ttl_s
        self._renewed = (time.monotonic(), holding.acquired_at.timestamp())
        self._lapsed_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="hltm-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Return if this run still may write. Cheap: one listing of a small folder.

        Raises:
            LeaseLostError: A later epoch exists, this epoch's file is gone, or it was not renewed
                within its ttl, as when the process was suspended. It stays lost.
        """
        newest = _newest_epoch(self._folder)
        if newest > self.epoch:
            by = _name_of(newest, _read(_file(self._folder, newest, "json"), Holding))
            raise LeaseLostError(
                f"this run's lease was taken over (epoch {newest} by {by}), {NOTHING_MORE}"
            )
        if newest < self.epoch:
            raise LeaseLostError(
                f"this run's lease file is gone (epoch {self.epoch} in {self._folder}), "
                f"{NOTHING_MORE}"
            )
        if self._has_lapsed():
            raise LeaseLostError(
                f"this run's lease lapsed: epoch {self.epoch} was not renewed for "
                f"{self._lapsed_s:.0f} s, its limit is {self._ttl_s:g} s (was the process "
                f"suspended?), {NOTHING_MORE}"
            )

    def release(self) -> None:
        """Let the next run begin. A failure is only logged: the lease ends with the process."""
        self._ended.set()
        self._thread.join()
        try:
            content = json.dumps({"released_at": _utc(time.time()).isoformat()})
            _replace(_file(self._folder, self.epoch, "released"), content)
        except OSError as error:
            logger.warning("lease epoch %d not released: %s", self.epoch, error.strerror)

    def _has_lapsed(self) -> bool:
        """Compare by both clocks: only the wall clock runs on while the machine sleeps."""
        ticks, clock = self._renewed
        age_s = max(time.monotonic() - ticks, time.time() - clock)
        if not self._lapsed_s and age_s > self._ttl_s:
            self._lapsed_s = age_s
        return self._lapsed_s > 0

    def _keep(self) -> None:
        while not self._ended.wait(self._ttl_s / 4):
            try:
                self.check()
                self._renew()
            except LeaseLostError as error:
                logger.warning("%s", error)
                return
            except OSError as error:  # a full disk may have room before the ttl is over
                logger.warning("lease epoch %d not renewed: %s", self.epoch, error.strerror)

    def _renew(self) -> None:
        ticks, clock = time.monotonic(), time.time()  # before the write, which may take long
        renewal = Renewal(renewed_at=_utc(clock), expires_at=_utc(clock + self._ttl_s))
        _replace(_file(self._folder, self.epoch, "renewed"), renewal.model_dump_json())
        self._renewed = (ticks, clock)


@contextmanager
def hold_lease(
    root: Root, *, verb: str, run_id: str, ttl_s: float = 120.0, wait_s: float | None = None
) -> Iterator[Lease]:
    """Hold the only lease of a root while the block runs.

    A lease that a dead process of this host left is taken over at once, one of another host when it
    expires. The block must call `check` before each commit; leaving the block releases.

    Args:
        root: The storage root.
        verb: What the run does, such as `update`; told to runs that wait.
        run_id: The run.
        ttl_s: Seconds without a sign of life after which other runs may take the lease over.
        wait_s: Seconds to wait for another run; `ttl_s` and its tolerance where None.

    Raises:
        LeaseHeldError: Another run held the lease all the time.
        RuntimeError: This thread holds the lease of this root already.
    """
    if ttl_s <= 0:
        raise ValueError(f"ttl_s must be positive, got {ttl_s!r}")
    key = (root.path, threading.get_ident())
    if key in _holding:
        raise RuntimeError(
            f"this thread holds the lease of {root.path!r} already, {verb!r} must not ask for it "
            "again; call the step inside without a lease"
        )
    folder = root.folder("lease")
    wait_s = ttl_s + 2 * _tolerance_s(ttl_s) if wait_s is None else wait_s
    lease = _wait_for(_Queue(folder, verb=verb, run_id=run_id, ttl_s=ttl_s), wait_s)
    _holding.add(key)
    try:
        _remove_old(folder, lease.epoch)
        yield lease
    finally:
        _holding.discard(key)
        lease.release()


class _Queue:
    """A run that wants the lease, and what it has seen of the one before it."""

    def __init__(self, folder: Path, *, verb: str, run_id: str, ttl_s: float) -> None:
        self.folder, self.ttl_s = folder, ttl_s
        self.held_by = ""
        self._verb, self._run_id = verb, run_id
        self._sign = (0, 0.0)
        self._seen_at = 0.0

    def try_once(self) -> Lease | None:
        """Take the lease if it is free; otherwise say in `held_by` who has it."""
        ticks, clock = time.monotonic(), time.time()  # before reading: see the module's text
        epoch = _newest_epoch(self.folder)
        holding = _read(_file(self.folder, epoch, "json"), Holding)
        self.held_by = _name_of(epoch, holding)
        why_free = ""
        if epoch and not _file(self.folder, epoch, "released").exists():
            if holding and is_dead(holding.holder):
                why_free = "its process is dead"
            elif self._is_expired(epoch, holding, ticks=ticks, clock=clock):
                why_free = "it expired"
            else:
                return None
        if (lease := self._claim(epoch + 1)) is None:
            self.held_by = _name_of(
                epoch + 1, _read(_file(self.folder, epoch + 1, "json"), Holding)
            )
        elif why_free:
            logger.warning("took over lease epoch %d of %s: %s", epoch, self.held_by, why_free)
        return lease

    def _is_expired(
        self, epoch: int, holding: Holding | None, *, ticks: float, clock: float
    ) -> bool:
        """Compare the last sign of life with both clocks.

        A sign counts as given when this run first saw it, at the latest: a time in the future, from
        a clock that was wrong or is another host's, then expires too.
        """
        sign = (epoch, _last_sign(self.folder, epoch, holding, default=clock))
        if sign != self._sign:
            self._sign, self._seen_at = sign, ticks
        ttl_s = holding.ttl_s if holding else self.ttl_s
        return max(clock - sign[1], ticks - self._seen_at) > ttl_s + _tolerance_s(ttl_s)

    def _claim(self, epoch: int) -> Lease | None:
        """Create an epoch's file, or return None where another run was first."""
        now = time.time()
        holding = Holding(
            holder=this_process(),
            verb=self._verb,
            run_id=self._run_id,
            acquired_at=_utc(now),
            expires_at=_utc(now + self.ttl_s),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        file = _file(self.folder, epoch, "json")
        try:
            _create(file, holding.model_dump_json())
        except (FileExistsError, FileNotFoundError):  # taken, or so late that it was swept
            return None
        if _newest_epoch(self.folder) > epoch:  # it had been taken and removed before
            file.unlink(missing_ok=True)
            return None
        return Lease(self.folder, epoch, holding, series=_series(self.folder))


def _wait_for(queue: _Queue, wait_s: float) -> Lease:
    """Try until the lease is free, with growing pauses.

    Raises:
        LeaseHeldError: It was not free in time.
    """
    deadline, pause_s, is_told = time.monotonic() + wait_s, FIRST_PAUSE_S, False
    while True:
        left_s = deadline - time.monotonic()
        if lease := queue.try_once():
            return lease
        if left_s <= 0:
            raise LeaseHeldError(
                f"the storage root {str(queue.folder.parent)!r} is in use by {queue.held_by}, "
                f"after {wait_s:g} s of waiting; let it end or stop it, then run again"
            )
        if not is_told:
            logger.info("waiting up to %g s for %s to end", wait_s, queue.held_by)
            is_told = True
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def _name_of(epoch: int, holding: Holding | None) -> str:
    return str(holding) if holding else f"an unknown run (epoch {epoch}, its file is unreadable)"


def _tolerance_s(ttl_s: float) -> float:
    """Return how much longer than the holder the others wait, so that it knows first."""
    return min(2.0, ttl_s / 10)


def _last_sign(folder: Path, epoch: int, holding: Holding | None, *, default: float) -> float:
    """Return when an epoch's holder last gave a sign of life; of a torn file, when it was written.

    A renewal counts before the acquisition even if it is earlier: the clock may have been set back.
    """
    renewed, made = _file(folder, epoch, "renewed"), _file(folder, epoch, "json")
    if renewal := _read(renewed, Renewal):
        return renewal.renewed_at.timestamp()
    if holding and not renewed.exists():
        return holding.acquired_at.timestamp()
    for file in (renewed, made):
        with suppress(FileNotFoundError):
            return file.stat().st_mtime
    return default  # swept just now: there is a later epoch


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _file(folder: Path, epoch: int, ending: str) -> Path:
    return folder / f"{epoch:012d}.{ending}"


def _series(folder: Path) -> str:
    file = folder / "series"
    if not file.exists():
        with suppress(FileExistsError):
            _create(file, secrets.token_hex(8))
    return file.read_text(encoding="utf-8")


def _newest_epoch(folder: Path) -> int:
    """Return the last epoch that was taken, 0 where none was."""
    return max((int(file.stem) for file in folder.glob("[0-9]" * 12 + ".json")), default=0)


def _read(file: Path, kind: type[Content]) -> Content | None:
    """Return a file's content, or None where it is missing or torn."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _replace(file: Path, text: str) -> None:
    """Write a file as a whole: a reader finds the old or the new one."""
    scratch = _scratch(file)
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(file)


def _create(file: Path, text: str) -> None:
    """Write a file that is not there yet, and have it survive a power loss.

    An epoch must not be given out twice: commits are fenced by it.

    Raises:
        FileExistsError: Another run made it first.
    """
    scratch = _scratch(file)
    try:
        write_synced(scratch, text)
        os.link(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(file.parent)


def _scratch(file: Path) -> Path:
    """Return a new name that sorts under the file's epoch, so that it is swept with it."""
    return file.with_suffix(f".{secrets.token_hex(8)}.part")


def _remove_old(folder: Path, epoch: int) -> None:
    """Remove the files of all but the last epochs, and what a kill left of them."""
    for file in folder.iterdir():
        number = file.name.partition(".")[0]
        if number.isdecimal() and int(number) <= epoch - KEPT_EPOCHS:
            with suppress(OSError):  # another user's; it does no harm
                file.unlink()
