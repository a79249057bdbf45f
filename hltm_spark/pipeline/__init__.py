"""The pipeline: documents to memory to shards, each step a file named for it."""
