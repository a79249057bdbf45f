"""The command group, logging, and exit codes.

Exit codes: 0 done, 2 wrong settings or data (do not retry), 3 stopped by a budget or a signal with
everything so far kept, 1 anything else (retry).
"""

import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import click

from hltm_spark import __version__
from hltm_spark.cli.dataset import dataset
from hltm_spark.cli.history import runs
from hltm_spark.cli.look import query, show
from hltm_spark.cli.plan import plan
from hltm_spark.cli.run import index, ingest, publish, update, verify
from hltm_spark.core.errors import (
    EmbeddingError,
    HltmError,
    LlmError,
    StoppedError,
    TooManyFailuresError,
)

STOPPED, WRONG, FAILED = 3, 2, 1
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MAY_PASS = (TooManyFailuresError, LlmError, EmbeddingError)
"""Errors that settings and data are not to blame for: endpoints that are down, for example."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hltm")
@click.option("-v", "--verbose", is_flag=True, help="Log more, to stderr.")
def hltm(verbose: bool) -> None:  # noqa: FBT001 - click passes a flag
    """Build, refresh and query a long-term semantic memory over Delta tables.

    \b
    hltm ingest --input samples/hiring/documents.jsonl --root .hltm
    hltm index --root .hltm
    hltm query --root .hltm --scope TENANT/SEAT "what is the typical location?"

    Exit codes: 0 done, 2 wrong settings or data, 3 stopped by a budget or a signal, 1 anything
    else.
    """  # noqa: D301 - click wants the character itself
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("hltm_spark").setLevel(logging.DEBUG if verbose else logging.INFO)


for verb in (ingest, index, update, plan, publish, verify, query, show, runs, dataset):
    hltm.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run_command(arguments))


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal passes both
    raise KeyboardInterrupt


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = hltm.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="hltm",
            standalone_mode=False,
        )
    except HltmError as error:
        click.echo(f"hltm: {error}", err=True)
        return _code_of(error)
    except click.ClickException as error:
        error.show()
        return WRONG
    except (click.Abort, KeyboardInterrupt):
        click.echo("hltm: stopped; what was paid for is kept, run it again to go on", err=True)
        return STOPPED
    except OSError as error:
        _tell(error)
        return WRONG if error.errno in _NOT_ALLOWED else FAILED
    except Exception as error:  # noqa: BLE001 - the last line of defence turns it into a code
        _tell(error)
        return FAILED
    return code if isinstance(code, int) else 0


def _code_of(error: HltmError) -> int:
    if isinstance(error, StoppedError):
        return STOPPED
    return FAILED if isinstance(error, _MAY_PASS) else WRONG


def _tell(error: Exception) -> None:
    """Name an unexpected error without its message, which may hold document text."""
    if os.environ.get("HLTM_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in _NOT_ALLOWED:
        click.echo(f"hltm: cannot write {error.filename}: {error.strerror}", err=True)
        return
    click.echo(
        f"hltm: unexpected {type(error).__name__}; set HLTM_DEBUG=1 for the traceback, which may "
        "show document text",
        err=True,
    )
