"""The offline provider: views and answers by rules and counts, without a key.

A module a step: `lines` and `labels` read a document, `dialogue` its exchanges, `sentences` its
central statements; `reading` puts them together for one node's documents; `leaf` writes the views
from it, `rollup`, `counts` and `parent` those of a node with children; `query` reads a question and
answers it. Labels and templates are English; text of any script passes through unharmed.
"""

from hltm_spark.models.extractive.client import ExtractiveClient
from hltm_spark.models.extractive.query import NOT_IN_MEMORY

__all__ = ["NOT_IN_MEMORY", "ExtractiveClient"]
