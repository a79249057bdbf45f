"""The main path on the bundled hiring sample, without a key: what `make demo` runs.

It builds a fresh root under .demo/, so that every run shows the same thing.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from hltm_spark.cli.app import run_command

CHECKOUT = Path(__file__).resolve().parents[1]
SAMPLE = CHECKOUT / "samples" / "hiring"
ROOT = CHECKOUT / ".demo"
# A short run: the first compiler alone starts faster, but then the default code cache fills up.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"


def main() -> int:
    """Run every step; the first that fails ends the demo with its exit code."""
    os.environ.setdefault("HLTM_JAVA_OPTIONS", QUICK_START)
    shutil.rmtree(ROOT, ignore_errors=True)
    began = time.monotonic()
    questions = json.loads((SAMPLE / "questions.json").read_text(encoding="utf-8"))[:3]
    say("Documents into Delta")
    run("ingest", "--input", str(SAMPLE / "documents.jsonl"))
    say("Views for every leaf, rolled up to the contracts, published as one shard a tenant")
    run("index")
    say("The tree")
    run("show", "--depth", "1")
    for number, question in enumerate(questions, start=1):
        say(f"Question {number} of 3, asked inside {question['scope']}")
        print(f"  {question['question']}\n")
        run("query", "--scope", question["scope"], question["question"])
    say("Two documents are edited")
    run("ingest", "--input", str(SAMPLE / "edits.jsonl"))
    say("Update: only their leaves and ancestors are written again")
    run("update")
    run("runs", "--nodes")
    seconds = time.monotonic() - began
    say(f"Done in {seconds:.0f} s. The root is {ROOT.name}/; `make help` lists more.")
    return 0


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def run(*arguments: str) -> None:
    """Run one `hltm` command on the demo's root, shown as a person would type it."""
    shown = " ".join(f'"{a}"' if " " in a else a.replace(f"{CHECKOUT}/", "") for a in arguments)
    print(f"$ hltm {shown} --root .demo", flush=True)
    conf = str(CHECKOUT / "conf" / "hiring.toml")
    code = run_command([*arguments, "--conf", conf, "--root", str(ROOT)])
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
