"""Which structured-output mode a server knows, found once for all threads of a client."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from hltm_spark.models.retrying import describe_error, error_words

PATIENCE_S = 0.3
"""Seconds that requests wait for the first one: a server that refuses a format does so at once, and
the answer of one that takes it is not worth a round of waiting."""

_STEPS = {"json_schema": "json_object", "json_object": "text"}
_WORDS = ("response_format", "json_schema", "json_object", "structured output", "guided")
_REFUSALS = frozenset({400, 422, 501})

logger = logging.getLogger(__name__)


def concerns_format(error: openai.APIStatusError) -> bool:
    """Return True where an endpoint complains of the `response_format` of a request."""
    if error.param:
        return "response_format" in str(error.param)
    return any(word in error_words(error) for word in _WORDS)


class FormatChoice:
    """The mode in use: as set, or with `auto` the richest that the server takes.

    Until one request has been answered the others wait for it, `PATIENCE_S` at most, so that a
    refusal is learned by one request and not by every thread.
    """

    def __init__(self, setting: str) -> None:
        """Start from a value of `llm.structured_output`."""
        self._is_fixed = setting != "auto"
        self._mode = "json_schema" if setting == "auto" else setting
        self._is_settled = self._is_fixed
        self._schema_was_tried = False
        self._alone = threading.Lock()
        self._state = threading.Lock()

    @property
    def mode(self) -> str:
        """The mode in use now."""
        return self._mode

    @contextmanager
    def turn(self) -> Iterator[str]:
        """Give the mode for one request; alone for a moment while the mode is not settled."""
        if self._is_settled:
            yield self._mode
            return
        is_alone = self._wait_alone()
        try:
            yield self._mode
        finally:
            if is_alone:
                self._alone.release()

    def _wait_alone(self) -> bool:
        """Return True where no other request may go: this one holds the lock."""
        is_alone = self._alone.acquire(timeout=PATIENCE_S)
        if is_alone and self._is_settled:
            self._alone.release()
            return False
        return is_alone

    def settle(self) -> None:
        """Note that a request was answered in the present mode."""
        with self._state:
            self._schema_was_tried = True
            self._is_settled = True

    def stop_waiting(self) -> None:
        """Let requests run together though the mode is open: the endpoint is down for all."""
        with self._state:
            self._is_settled = True

    def is_refusal(self, mode: str, error: BaseException) -> bool:
        """Return True where an error says that the server does not know this mode.

        HTTP 500 to a json_schema request says so only if it is the first such request, or was sent
        beside it (llama.cpp's server answers that); later it is a fault like any other.
        """
        if self._is_fixed or mode == "text" or not isinstance(error, openai.APIStatusError):
            return False
        if error.status_code == 500 and mode == "json_schema":
            return self._mode != mode or not self._schema_was_tried
        return error.status_code in _REFUSALS and concerns_format(error)

    def step_down(self, mode: str, error: openai.APIError) -> bool:
        """Go to the next simpler mode if the error asks for it; return True to try again."""
        if not self.is_refusal(mode, error):
            return False
        with self._state:
            self._schema_was_tried = True
            if self._mode == mode:
                self._mode = _STEPS[mode]
                logger.warning(
                    "llm.structured_output: the endpoint does not take %s (%s), going on with %s",
                    mode,
                    describe_error(error),
                    self._mode,
                )
        return True
