"""spark-submit entry point of `hltm publish`: same options and exit codes, no logic of its own."""

import sys

from hltm_spark.cli import main

if __name__ == "__main__":
    main(["publish", *sys.argv[1:]])
