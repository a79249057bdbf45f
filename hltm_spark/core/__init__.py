"""Configuration, tree, prompts, records and the shard format: pure Python, no Spark."""
