"""`hltm dataset`: published data sets as documents."""

from itertools import chain

import click

from hltm_spark.cli.options import Call, common_options
from hltm_spark.evaluation.locomo import locomo_documents, read_locomo, write_documents


@click.group()
def dataset() -> None:
    """Turn a published data set into documents."""


@dataset.command()
@click.argument("source", metavar="INPUT")
@click.argument("target", metavar="OUTPUT")
@common_options
def locomo(call: Call, source: str, target: str) -> None:
    """Write LoCoMo's file INPUT as documents OUTPUT (JSONL) for conf/conversation.toml."""
    samples = read_locomo(source)
    turns = chain.from_iterable(locomo_documents(sample) for sample in samples)
    count = write_documents(target, turns)
    call.report(
        {"documents": count, "conversations": len(samples), "output": target},
        [f"{count} turns of {len(samples)} conversations written to {target}"],
    )
