"""The `hltm` command; every verb takes --conf, --root, --set and --json."""

from hltm_spark.cli.app import main

__all__ = ["main"]
