"""Python's search for cycles of objects, set aside where it costs more than it can find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Leave cycles alone while the block runs.

    For a short block that builds rows by the hundred thousand and waits for nobody: they hold no
    cycles, and each search for some looks at all of them again, which is two fifths of the time
    that a small run takes to gather its inputs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
