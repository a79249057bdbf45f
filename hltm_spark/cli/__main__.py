"""`python -m hltm_spark.cli` is the `hltm` command."""

from hltm_spark.cli.app import main

main()
