"""The reader's front door: opens tenants' shards on first use and keeps the newest few."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from hltm_spark.core.conf_file import load_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.errors import EmbeddingMismatch, ScopeNotFound, ShardCorrupt, ShardNotFound
from hltm_spark.core.shard import has_versions, read_pointer, tenant_folder
from hltm_spark.models.embedders import Embedder
from hltm_spark.models.llm import LlmClient
from hltm_spark.models.providers import make_embedder, make_llm
from serving.scope import Scope, checked_keys
from serving.shard import Shard


class _Client(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=_Client)

GATES = 16
"""Tenants that may be opened at once; two threads never open the same one."""


class MemoryReader:
    """A published memory. Safe under concurrent use; open it after a fork, not before."""

    def __init__(
        self,
        shards: Path,
        settings: Settings,
        *,
        llm: LlmClient | None = None,
        embedder: Embedder | None = None,
        max_tenants: int = 64,
    ) -> None:
        self._shards, self._settings, self._max_tenants = shards, settings, max_tenants
        wanted = embedder or settings.embedding
        self._model = (
            embedder.model if embedder else settings.embedding.model_name,
            wanted.dimension,
        )
        self._llm = _Once[LlmClient](lambda: make_llm(settings), given=llm)
        self._embedder = _Once[Embedder](lambda: make_embedder(settings.embedding), given=embedder)
        self._open: OrderedDict[str, Shard] = OrderedDict()
        self._generation = 0
        self._lock = threading.Lock()
        self._gates = [threading.Lock() for _ in range(GATES)]

    @classmethod
    def open(
        cls,
        shards: str | os.PathLike[str],
        *,
        settings: str | os.PathLike[str] | Settings,
        llm: LlmClient | None = None,
        embedder: Embedder | None = None,
        max_tenants: int = 64,
    ) -> Self:
        """Return a reader over a shards folder; tenants are opened when they are asked for.

        Args:
            shards: The folder `shards/` of a storage root.
            settings: The conf that the memory was built with, or its file.
            llm: Client for query facets and answers; made from the settings unless given.
            embedder: Must be the one that wrote the shards; made from the settings unless given.
            max_tenants: Tenants kept open; the least recently used is closed.

        Raises:
            ShardNotFound: There is no such folder.
        """
        folder = Path(shards)
        if not folder.is_dir():
            raise ShardNotFound(f"no shards folder {str(folder)!r}; run `hltm publish` first")
        loaded = settings if isinstance(settings, Settings) else load_settings(settings)
        return cls(folder, loaded, llm=llm, embedder=embedder, max_tenants=max_tenants)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the clients that this reader made; those that were given stay open."""
        self._llm.close()
        self._embedder.close()

    def scope(self, node: str | tuple[str, ...]) -> Scope:
        """Return the subtree of a node: the only way to a query.

        Args:
            node: Node id, or the keys from the tenant down.

        Raises:
            ScopeNotFound: There is no such node; whether others exist is not told.
            ShardCorrupt: The tenant's files are not what its manifest says.
            EmbeddingMismatch: The tenant's vectors are of another model than the queries'.
        """
        keys = checked_keys(node)
        return Scope(
            keys,
            settings=self._settings,
            open_shard=partial(self._tenant, keys[0]),
            embedder=self._embedder.get,
            llm=self._llm.get,
        )

    def refresh(self) -> int:
        """Take up newly published versions; return how many open tenants had one.

        A reader sees a new version from here on, never before: call it as often as news matters.
        Queries under way finish on the version they began with.
        """
        with self._lock:
            opened = list(self._open.items())
        changed = [tenant for tenant, shard in opened if self._is_behind(tenant, shard)]
        with self._lock:
            self._generation += 1
            for tenant in changed:
                self._open.pop(tenant, None)
        return len(changed)

    def _is_behind(self, tenant_id: str, shard: Shard) -> bool:
        return read_pointer(self._shards / tenant_folder(tenant_id)) != shard.version

    def _tenant(self, tenant_id: str) -> Shard:
        with self._gates[hash(tenant_id) % GATES]:
            with self._lock:
                generation = self._generation
                if (held := self._open.get(tenant_id)) is not None:
                    self._open.move_to_end(tenant_id)
                    return held
            shard = self._opened(tenant_id)
            with self._lock:
                if generation == self._generation:  # else it may be a version from before a refresh
                    self._open[tenant_id] = shard
                while len(self._open) > self._max_tenants:
                    self._open.popitem(last=False)
        return shard

    def _opened(self, tenant_id: str) -> Shard:
        try:
            shard = Shard.open(self._shards / tenant_folder(tenant_id), tenant_id=tenant_id)
        except ShardNotFound:
            if has_versions(self._shards / tenant_folder(tenant_id)):
                raise ShardCorrupt(
                    "the tenant's CURRENT names no version that is there; run `hltm publish`"
                ) from None
            raise ScopeNotFound("no memory at this scope; check the node id") from None
        written = (shard.manifest.embedding_model, shard.manifest.dimension)
        if written != self._model:
            raise EmbeddingMismatch(
                f"the shard has vectors of {written[0]!r} ({written[1]}), queries would have "
                f"{self._model[0]!r} ({self._model[1]}); use the conf that built it"
            )
        return shard


class _Once(Generic[Made]):
    """Makes a client at first use, once for all threads."""

    def __init__(self, make: Callable[[], Made], *, given: Made | None) -> None:
        self._make, self._made, self._is_given = make, given, given is not None
        self._lock = threading.Lock()

    def get(self) -> Made:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        with self._lock:
            if self._made is not None and not self._is_given:
                self._made.close()
                self._made = None
