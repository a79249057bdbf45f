"""Texts of the views to vectors: each distinct text once per tenant and model."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.config import EmbeddingSettings
from hltm_spark.models.embedders import Embedder
from hltm_spark.models.providers import make_embedder
from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import EMBEDDINGS

TEXTS_A_COMMIT = 20_000
"""Paid vectors that a killed publishing may lose at most."""


def open_texts(view_rows: DataFrame, embeddings: DataFrame, *, model: str, root: Root) -> DataFrame:
    """Return the texts that have no vector yet.

    Args:
        view_rows: tenant_id, text_hash and text; a null text is not embedded.
        embeddings: The `embeddings` table.
        model: Embedding model as the table records it.
        root: Storage root.

    Returns:
        One row per (tenant_id, text_hash): tenant_key, text.
    """
    known = embeddings.where(F.col("model") == model).select("tenant_id", "text_hash")
    return (
        view_rows.where("text IS NOT NULL")
        .select("tenant_id", "text_hash", "text")
        .dropDuplicates(["tenant_id", "text_hash"])
        .join(known, ["tenant_id", "text_hash"], "left_anti")
        .withColumn("tenant_key", salted_key("tenant_id", root))
    )


def embed_texts(texts: DataFrame, settings: EmbeddingSettings, *, slots: int) -> DataFrame:
    """Return `embeddings` rows for texts. Write this frame once, then read the table."""
    return map_rows(
        texts.repartition(slots), lambda rows: embedded_rows(rows, settings), EMBEDDINGS.schema
    )


def embedded_rows(
    rows: Iterable[Mapping[str, Any]], settings: EmbeddingSettings
) -> Iterator[dict[str, Any]]:
    """Yield one `embeddings` row per text; the vector is null where the model has none for it."""
    source = iter(rows)
    embedder: Embedder | None = None
    while batch := list(islice(source, settings.max_batch_items)):
        embedder = embedder or make_embedder(settings)
        vectors = embedder.embed([row["text"] for row in batch])
        for row, vector in zip(batch, vectors, strict=True):
            yield {
                **{name: row[name] for name in ("tenant_id", "tenant_key", "text_hash")},
                "model": settings.model_name,
                "dimension": settings.dimension,
                "vector": np.asarray(vector, "<f4").tobytes() if vector.any() else None,
            }
    if embedder is not None:
        embedder.close()
