"""The reader: answers inside one subtree of a published memory, without Spark or Java.

from serving import MemoryReader

memory = MemoryReader.open("shards/", settings="conf/hiring.toml")
answer = memory.scope("acme/seat-42").answer("typical location for ML hires?")
"""

from hltm_spark.core.errors import (
    EmbeddingMismatch,
    ReaderError,
    ScopeNotFound,
    ShardCorrupt,
    ShardNotFound,
)
from serving.reader import MemoryReader
from serving.results import Answer, Context, Evidence, Hit, NodeView, Usage
from serving.scope import Scope

__all__ = [
    "Answer",
    "Context",
    "EmbeddingMismatch",
    "Evidence",
    "Hit",
    "MemoryReader",
    "NodeView",
    "ReaderError",
    "Scope",
    "ScopeNotFound",
    "ShardCorrupt",
    "ShardNotFound",
    "Usage",
]
