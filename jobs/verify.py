"""spark-submit entry point of `hltm verify`: same options, same exit codes, no logic of its own."""

import sys

from hltm_spark.cli import main

if __name__ == "__main__":
    main(["verify", *sys.argv[1:]])
