"""The `hltm` command: one verb a module's function, every verb with --conf, --root, --set, --json."""

from hltm_spark.cli.app import main

__all__ = ["main"]
