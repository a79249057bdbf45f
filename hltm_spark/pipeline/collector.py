"""Python's search for cycles of objects, set aside where it costs more than it can find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Leave cycles alone while the block runs.

    Rows as dictionaries and records hold none, and they are freed as they go; with hundreds of
    thousands of them at hand, each search for cycles looks at all, again and again: two fifths of
    the time that a small run takes to gather its inputs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
