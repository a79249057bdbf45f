"""spark-submit entry point of `hltm plan`: same options, same exit codes, no logic of its own."""

import sys

from hltm_spark.cli import main

if __name__ == "__main__":
    main(["plan", *sys.argv[1:]])
