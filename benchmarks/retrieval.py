"""Retrieval on LoCoMo beside plain baselines, over the same questions in one run.

python benchmarks/retrieval.py --locomo locomo10.json [--root DIR] [--json OUT]

The memory is built by the command line with conf/conversation.toml and asked by the reader, as a
user would. A question's corpus is the turns of its conversation; k counts distinct turns. The
dataset is not shipped: LoCoMo's authors publish it (snap-research/locomo, CC BY-NC 4.0).

The weights of conf/conversation.toml were chosen on conversations 26, 30, 42, 43, 47, 48 and 50, so
that the project's figures on these are not held out; the baselines have their usual constants.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.baselines import Ranker, baselines
from hltm_spark.core.conf_file import load_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.errors import HltmError, ReaderError
from hltm_spark.evaluation.locomo import locomo_documents, read_locomo
from hltm_spark.evaluation.recall import evidence_ids, precision_at, recall_at
from hltm_spark.models.embedders import Embedder
from hltm_spark.models.providers import make_embedder
from serving import Context, MemoryReader, Scope

CONF = Path(__file__).resolve().parents[1] / "conf" / "conversation.toml"
CUTS = (5, 10, 20)
MEASURES = (*(f"evidence_recall@{k}" for k in CUTS), "precision@10")
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop", 5: "adversarial"}
COUNTED = (1, 2, 3, 4)
"""Categories of the mean; the adversarial questions ask for what nobody said."""
INDEX_REPORT = "benchmark-index.json"
"""The index run's own report, kept in the root for a later run over the same shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with the turns that answer it."""

    text: str
    category: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation: its turns, as "speaker: text", and the questions that have evidence."""

    name: str
    turn_ids: tuple[str, ...]
    texts: tuple[str, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one system made of one question."""

    category: int
    values: Mapping[str, float]
    seconds: float


def read_conversation(sample: Mapping[str, Any]) -> Conversation:
    """Return one of LoCoMo's samples; questions without a turn as evidence are left out."""
    documents = list(locomo_documents(sample))
    known = {document["doc_id"] for document in documents}
    questions = [
        Question(text=str(qa["question"]), category=int(qa["category"]), evidence=evidence)
        for qa in sample.get("qa") or ()
        if (evidence := evidence_ids(qa.get("evidence"), known))
    ]
    return Conversation(
        name=str(sample["sample_id"]),
        turn_ids=tuple(document["doc_id"] for document in documents),
        texts=tuple(f"{d['metadata']['speaker']}: {d['text']}" for d in documents),
        questions=tuple(questions),
    )


def memory_systems(scope: Scope) -> dict[str, Ranker]:
    """Return the project's retrieval: its list of documents, and the documents of all its lists.

    Only the evidence list orders documents by a score of their own. `Context.documents` is every
    list after another, facets first: what an answer may cite, hardly a ranking.
    """

    def of_evidence(context: Context) -> Sequence[str]:
        return list(dict.fromkeys(d for hit in context.evidence for d in hit.documents))

    def of_all(context: Context) -> Sequence[str]:
        return context.documents

    def asked(documents: Callable[[Context], Sequence[str]]) -> Ranker:
        return lambda query: documents(scope.retrieve(query))

    return {"hltm": asked(of_evidence), "hltm (all lists)": asked(of_all)}


def measure(rank: Ranker, question: Question) -> Outcome:
    """Ask one system one question."""
    began = time.perf_counter()
    ranked = rank(question.text)
    seconds = time.perf_counter() - began
    values = {f"evidence_recall@{k}": recall_at(ranked, question.evidence, k) for k in CUTS}
    values["precision@10"] = precision_at(ranked, question.evidence, 10)
    return Outcome(category=question.category, values=values, seconds=seconds)


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return one system's means over the counted categories and for each, and its speed."""
    counted = [outcome for outcome in outcomes if outcome.category in COUNTED]
    by_category = {
        str(category): _means([outcome for outcome in outcomes if outcome.category == category])
        for category in sorted({outcome.category for outcome in outcomes})
    }
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    return {**_means(counted), "by_category": by_category, "seconds_per_query": seconds}


def compare(
    conversations: Sequence[Conversation], memory: MemoryReader, embedder: Embedder
) -> dict[str, Any]:
    """Return every system's summary over the same questions."""
    outcomes: dict[str, list[Outcome]] = {}
    for conversation in conversations:
        scope = memory.scope((conversation.name,))
        systems = {
            **memory_systems(scope),
            **baselines(conversation.turn_ids, conversation.texts, embedder),
        }
        for name, rank in systems.items():
            asked = map(partial(measure, rank), conversation.questions)
            outcomes.setdefault(name, []).extend(asked)
    return {name: summarise(of_system) for name, of_system in outcomes.items()}


def build_memory(locomo: str, root: Path) -> None:
    """Convert, ingest and index by the command line; the index run's report stays in the root."""
    documents = root / "benchmark-documents.jsonl"
    hltm("dataset", "locomo", locomo, str(documents))
    hltm("ingest", "--input", str(documents), "--conf", str(CONF), "--root", str(root))
    report = hltm("index", "--conf", str(CONF), "--root", str(root))
    (root / INDEX_REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")


def hltm(*arguments: str) -> dict[str, Any]:
    """Run one `hltm` verb in a process of its own and return its JSON."""
    command = [sys.executable, "-m", "hltm_spark.cli", *arguments, "--json"]
    print(f"$ hltm {' '.join(arguments)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"hltm {arguments[0]} ended with exit code {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def is_built(conversations: Sequence[Conversation], root: Path, settings: Settings) -> bool:
    """Tell whether the root has a shard of every conversation with as many documents as turns."""
    try:
        with MemoryReader.open(root / "shards", settings=settings) as memory:
            return all(
                memory.scope((c.name,)).show().document_count == len(c.turn_ids)
                for c in conversations
            )
    except ReaderError:
        return False


def run(locomo: str, root: Path) -> dict[str, Any]:
    """Build the memory where the root has none yet, ask every system, and return the result."""
    settings = load_settings(CONF, overrides=(f"retrieval.k_evidence={max(CUTS)}",))
    conversations = [read_conversation(sample) for sample in read_locomo(locomo)]
    root.mkdir(parents=True, exist_ok=True)
    if not is_built(conversations, root, settings):
        build_memory(locomo, root)
    report = root / INDEX_REPORT
    embedder = make_embedder(settings.embedding)
    with MemoryReader.open(root / "shards", settings=settings) as memory:
        systems = compare(conversations, memory, embedder)
    embedder.close()
    asked = Counter(question.category for c in conversations for question in c.questions)
    return {
        "systems": systems,
        "questions": sum(asked[category] for category in COUNTED),
        "questions_by_category": {str(category): asked[category] for category in sorted(asked)},
        "conversations": len(conversations),
        "turns": sum(len(c.turn_ids) for c in conversations),
        "embedding_model": settings.embedding.model_name,
        "llm": settings.llm.model_name,
        "index": json.loads(report.read_text(encoding="utf-8")) if report.exists() else None,
    }


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Return the result as tables for a person."""
    systems: Mapping[str, Any] = result["systems"]
    base = systems["bm25"]["evidence_recall@10"] or 1.0
    rows = [
        [
            name,
            *(f"{s[m]:.3f}" for m in MEASURES),
            f"{s['evidence_recall@10'] / base:.2f}",
            f"{s['seconds_per_query'] * 1000:.2f}",
        ]
        for name, s in systems.items()
    ]
    asked = result["questions_by_category"]
    head = [f"{CATEGORIES.get(int(c), c)} ({count})" for c, count in asked.items()]
    parts = [
        [name, *(f"{s['by_category'][c]['evidence_recall@10']:.3f}" for c in asked)]
        for name, s in systems.items()
    ]
    return [
        f"{result['questions']} questions of categories 1-4, {result['conversations']} "
        f"conversations, {result['turns']} turns; k counts turns",
        *_table(["", "R@5", "R@10", "R@20", "P@10", "R@10 / bm25", "ms/query"], rows),
        "",
        "evidence recall@10 by category (questions)",
        *_table(["", *head], parts),
        "",
        *_index_lines(result["index"]),
    ]


def _means(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    means = {
        m: statistics.fmean(o.values[m] for o in outcomes) if outcomes else 0.0 for m in MEASURES
    }
    return {**means, "questions": len(outcomes)}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in (head, *rows)
    ]


def _index_lines(report: Mapping[str, Any] | None) -> list[str]:
    if report is None:
        return ["index: the root was built before; no report of it"]
    stages = ", ".join(f"{name} {s:.1f}" for name, s in report["stage_seconds"].items())
    return [
        f"index: {report['documents']} documents, {report['nodes_written']} nodes written, "
        f"{report['calls']} calls, {report['seconds']:.1f} s ({stages})"
    ]


def main() -> None:
    """Read the arguments, run, print the tables, and write the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description="Retrieval on LoCoMo beside plain baselines.")
    parser.add_argument("--locomo", required=True, metavar="FILE", help="LoCoMo's published JSON.")
    parser.add_argument("--root", metavar="DIR", help="Storage root; kept, and used again.")
    parser.add_argument("--json", metavar="OUT", help="Write the result to this file.")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hltm-bench-") as scratch:
            result = run(arguments.locomo, Path(arguments.root or scratch))
    except HltmError as error:
        sys.exit(f"retrieval: {error}")
    print("\n".join(lines_of(result)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
