"""hltm-spark: a schema-aligned long-term memory for LLM agents, built on Spark and Delta."""

__version__ = "0.1.0"
