"""Verbs that look into the published shards: query and show."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hltm_spark.cli.options import Call, common_options
from hltm_spark.core.errors import SettingsError, ShardCorrupt, ShardNotFound
from hltm_spark.core.shard import current_version, read_manifest
from serving import Answer, Context, Hit, MemoryReader, Scope, Usage

WIDTH = 96

logger = logging.getLogger("hltm_spark")


@click.command()
@click.argument("text", metavar="TEXT")
@click.option("--scope", "node", required=True, metavar="ID", help="Node id: the subtree to ask.")
@click.option(
    "--mode",
    type=click.Choice(["collapsed", "fast"]),
    default="collapsed",
    show_default=True,
    help="fast returns a stored answer, or nothing, without a model call.",
)
@click.option("--no-answer", is_flag=True, help="Print what is recalled, and write no answer.")
@common_options
def query(call: Call, text: str, node: str, *, mode: str, no_answer: bool) -> None:
    """Ask one subtree, from the published shards only."""
    scope = _reader(call).scope(node)
    if no_answer:
        context = scope.retrieve(text)
        call.report(_context_values(context), [*_hit_lines(context.hits)])
        return
    answer = scope.think_fast(text) if mode == "fast" else scope.answer(text)
    if answer is None:
        call.report(_no_answer_values(mode), ["no stored answer"])
        return
    call.report(_answer_values(answer), _answer_lines(scope, answer))


@click.command()
@click.argument("node", required=False, metavar="[NODE]")
@click.option("--depth", type=int, default=None, help="Levels to print below; all unless given.")
@common_options
def show(call: Call, node: str | None, depth: int | None) -> None:
    """Print the published tree with counts, or one node with its views."""
    memory = _reader(call)
    if node is not None:
        scope = memory.scope(node)
        shown = scope.show()
        children = [child.node_id for child in scope.children()]
        call.report({**asdict(shown), "children": children}, _node_lines(scope))
        return
    scopes = [memory.scope((tenant,)) for tenant in _tenants(call)]
    trees = [_tree(scope, depth) for scope in scopes]
    call.report({"tenants": trees}, [line for tree in trees for line in _tree_lines(tree)])


def _reader(call: Call) -> MemoryReader:
    if not call.root:
        raise SettingsError("storage.root is empty; pass --root DIR or set it in the conf file")
    return MemoryReader.open(Path(call.root) / "shards", settings=call.settings)


def _tenants(call: Call) -> list[str]:
    """Return the tenants of a root: whoever has its files may list them, the reader's users not."""
    tenants = []
    for folder in sorted((Path(call.root) / "shards").iterdir()):
        try:
            tenants.append(read_manifest(folder / current_version(folder)).tenant_id)
        except (ShardNotFound, ShardCorrupt):
            logger.warning("shards/%s cannot be read; run `hltm publish`", folder.name)
    return sorted(tenants)


def _tree(scope: Scope, depth: int | None) -> dict[str, Any]:
    shown = scope.show()
    below = scope.children() if depth is None or depth > 0 else []
    next_depth = None if depth is None else depth - 1
    return {
        "node_id": shown.node_id,
        "level": shown.level,
        "status": shown.status,
        "nodes": shown.node_count,
        "documents": shown.document_count,
        "facets": len(shown.views.facets),
        "questions": len(shown.views.question_answers),
        "one_sentence_summary": shown.views.one_sentence_summary,
        "children": [_tree(child, next_depth) for child in below],
    }


def _tree_lines(tree: dict[str, Any], indent: str = "") -> list[str]:
    counts = (
        f"{tree['level']}: {tree['nodes']} nodes, {tree['documents']} documents, "
        f"{tree['facets']} facets, {tree['questions']} questions"
    )
    name = tree["node_id"].rpartition("/")[2]
    status = "" if tree["status"] == "complete" else f" [{tree['status']}]"
    lines = [f"{indent}{name}  ({counts}){status}"]
    for child in tree["children"]:
        lines += _tree_lines(child, indent + "  ")
    return lines


def _node_lines(scope: Scope) -> list[str]:
    shown = scope.show()
    views = shown.views
    lines = [f"{shown.node_id}  ({shown.level}, {shown.status}, {shown.document_count} documents)"]
    lines += ["", views.one_sentence_summary, "", "facets:"]
    for facet in views.facets:
        counts = f" ({facet.support} of {facet.total})" if facet.total > 1 else ""
        lines.append(f"  {facet.name}: {facet.value}{counts}  [{', '.join(facet.documents[:3])}]")
    lines += ["", "question-answer pairs:"]
    for pair in views.question_answers:
        lines += [f"  {pair.question}", f"    {pair.answer}  [{', '.join(pair.documents[:3])}]"]
    lines += ["", "summary:", *(f"  {line}" for line in views.summary.splitlines())]
    children = [child.node_id for child in scope.children()]
    return [*lines, "", "children:", *(f"  {child}" for child in children)] if children else lines


def _answer_lines(scope: Scope, answer: Answer) -> list[str]:
    lines = [answer.answer, "", f"because: {answer.rationale}"]
    lines += [f"cites:   {node}" for node in answer.citation]
    for document in scope.evidence(answer)[:3]:
        text = " ".join(document.text.split())
        shown = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
        when = f", {document.event_time[:10]}" if document.event_time else ""
        lines += [
            f"  {document.doc_id} ({document.kind}{when}) of {document.node_id}",
            f"    {shown}",
        ]
    if len(answer.documents) > 3:
        lines.append(f"  and {len(answer.documents) - 3} more documents")
    lines.append(
        f"({answer.mode}, {answer.usage.calls} calls, {answer.usage.prompt_tokens} prompt tokens, "
        f"{answer.seconds * 1000:.0f} ms)"
    )
    return lines


def _hit_lines(hits: tuple[Hit, ...]) -> list[str]:
    lines = []
    for hit in hits:
        text = " ".join(f"{hit.name}: {hit.text}".split() if hit.name else hit.text.split())
        lines.append(f"{hit.score:7.3f}  {hit.view:8}  {hit.node_id}  {text[:WIDTH]}")
    return lines


def _no_answer_values(mode: str) -> dict[str, Any]:
    return {
        "answer": None,
        "rationale": "",
        "citation": [],
        "hits": [],
        "documents": [],
        "usage": asdict(Usage()),
        "seconds": 0.0,
        "mode": mode,
    }


def _hit_values(hit: Hit) -> dict[str, Any]:
    return {**asdict(hit), "scores": dict(hit.scores)}


def _context_values(context: Context) -> dict[str, Any]:
    return {
        **_no_answer_values("collapsed"),
        "hits": [_hit_values(hit) for hit in context.hits],
        "documents": list(context.documents),
        "usage": asdict(context.usage),
        "seconds": context.seconds,
    }


def _answer_values(answer: Answer) -> dict[str, Any]:
    hits = answer.context.hits if answer.context else ()
    return {
        "answer": answer.answer,
        "rationale": answer.rationale,
        "citation": list(answer.citation),
        "hits": [_hit_values(hit) for hit in hits],
        "documents": list(answer.documents),
        "usage": asdict(answer.usage),
        "seconds": answer.seconds,
        "mode": answer.mode,
    }
