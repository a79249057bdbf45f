"""The reader's front door: opens tenants' shards on first use and keeps the newest few."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, Self, TypeVar

from hltm_spark.core.config import Settings, load_settings
from hltm_spark.core.errors import EmbeddingMismatch, ScopeNotFound, ShardNotFound
from hltm_spark.core.shard import current_version, tenant_folder
from hltm_spark.models.embedders import Embedder
from hltm_spark.models.llm import LlmClient
from hltm_spark.models.providers import make_embedder, make_llm
from serving.scope import Scope, checked_keys
from serving.shard import Shard

Made = TypeVar("Made")


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
        self._llm = _Once(lambda: make_llm(settings), given=llm)
        self._embedder = _Once(lambda: make_embedder(settings.embedding), given=embedder)
        self._open: OrderedDict[str, Shard] = OrderedDict()
        self._lock = threading.Lock()

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

    def scope(self, node: str | tuple[str, ...]) -> Scope:
        """Return the subtree of a node: the only way to a query.

        Args:
            node: Node id, or the keys from the tenant down.

        Raises:
            ScopeNotFound: There is no such node; whether others exist is not told.
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
        """Take up newly published versions; return how many tenants had one.

        Queries under way finish on the version they began with.
        """
        with self._lock:
            opened = list(self._open.items())
        changed = [tenant for tenant, shard in opened if self._is_behind(tenant, shard)]
        with self._lock:
            for tenant in changed:
                self._open.pop(tenant, None)
        return len(changed)

    def _is_behind(self, tenant_id: str, shard: Shard) -> bool:
        try:
            return current_version(self._shards / tenant_folder(tenant_id)) != shard.version
        except ShardNotFound:
            return True

    def _tenant(self, tenant_id: str) -> Shard:
        with self._lock:
            shard = self._open.get(tenant_id)
            if shard is not None:
                self._open.move_to_end(tenant_id)
                return shard
        try:
            shard = Shard.open(self._shards / tenant_folder(tenant_id), tenant_id=tenant_id)
        except ShardNotFound:
            raise ScopeNotFound("no memory at this scope; check the node id") from None
        self._check_model(shard)
        with self._lock:
            self._open[tenant_id] = shard
            while len(self._open) > self._max_tenants:
                self._open.popitem(last=False)
        return shard

    def _check_model(self, shard: Shard) -> None:
        wanted = self._settings.embedding
        written = shard.manifest
        if (written.embedding_model, written.dimension) != (wanted.model_name, wanted.dimension):
            raise EmbeddingMismatch(
                f"the shard was written with {written.embedding_model}, "
                f"these settings have {wanted.model_name}; use the conf that built it"
            )


class _Once(Generic[Made]):
    """Makes a thing at first use, once for all threads."""

    def __init__(self, make: Callable[[], Made], *, given: Made | None) -> None:
        self._make, self._made = make, given
        self._lock = threading.Lock()

    def get(self) -> Made:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
