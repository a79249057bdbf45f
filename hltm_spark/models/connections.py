"""JSON posted to one URL as the SDK would post it, at a fraction of what the SDK takes for it.

With hundreds of calls in flight the processor is what a call stage waits for: the SDK builds each
request anew from its options, and its pool looks at every open connection at each call. Here the
SDK says once what it sends (URL, key, headers), and reads every answer that is not a plain success,
so that its errors stay its own. In between is the standard library: connections in a stack.
"""

import http.client
import json
import select
import ssl
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai

from hltm_spark.models.retrying import NoAnswerError

IDLE_S = 4.0
"""Seconds after which an unused connection is not used again; many servers close theirs at five."""

_HTTPX: Any = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
"""The HTTP client that the SDK is built on: its name depends on the SDK's version."""


def post_json(sdk: openai.OpenAI, path: str, body: dict[str, Any]) -> object:
    """Return the JSON that an endpoint answers, by the SDK alone.

    Raises:
        APIError: Any other status than success, or no connection.
        NoAnswerError: A success whose body is no JSON, such as a gateway's page.
    """
    try:
        return sdk.post(path, body=body, cast_to=object)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise NoAnswerError("HTTP 200 with a body that is not JSON") from None


class JsonPosts:
    """Posts JSON to one path of an endpoint. Safe to share between threads.

    As many connections are open as there were calls at once, until `close`. Where the environment
    names a proxy for the endpoint, every call goes through the SDK.
    """

    def __init__(self, sdk: openai.OpenAI, path: str, *, model: str, timeout_s: float) -> None:
        """Ask the SDK what it sends; no call is made.

        Args:
            sdk: Client of the endpoint; it stays open when this is closed.
            path: Below the API's root.
            model: As every body names it: in the URL of some endpoints.
            timeout_s: For the connection, and for each wait for a part of the answer.
        """
        self._sdk, self._path, self._model = sdk, path, model
        sent = self._sent_by_sdk()
        self._request, self._target = sent, sent.url.raw_path.decode("ascii")
        # the length is each call's own; to unpack an answer takes longer here than to receive it
        self._headers = dict(sent.headers) | {"accept-encoding": "identity"}
        del self._headers["content-length"]
        self._is_proxied = _has_proxy(sent.url.scheme, sent.url.host)
        self._stack = _Stack(_opener(sent.url, timeout_s=timeout_s))

    def post(self, body: dict[str, Any]) -> object:
        """Return the JSON that the endpoint answers.

        Raises:
            APIError: Any other status than success, or no connection.
            NoAnswerError: A success whose body is no JSON, such as a gateway's page.
        """
        if self._is_proxied:
            return post_json(self._sdk, self._path, body)
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        status, headers, answered = self._exchange(content)
        if 300 <= status < 400:
            return post_json(self._sdk, self._path, body)  # it knows whom it may follow
        if status >= 400 or "content-encoding" in headers:
            return self._read_by_sdk(status, headers, answered)
        try:
            return json.loads(answered)
        except ValueError:
            raise NoAnswerError("HTTP 200 with a body that is not JSON") from None

    def close(self) -> None:
        """Close the connections."""
        self._stack.close()

    def _exchange(self, content: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        try:
            connection = self._stack.take()
            try:
                connection.request("POST", self._target, body=content, headers=self._headers)
                response = connection.getresponse()
                answered = response.read()
            except BaseException:
                connection.close()
                raise
        except TimeoutError as error:
            raise openai.APITimeoutError(request=self._request) from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a header
            raise openai.APIConnectionError(request=self._request) from error
        self._stack.give(connection)
        return response.status, response.headers, answered

    def _sent_by_sdk(self) -> Any:
        """Return the request that the SDK would send, as its HTTP client knows it."""
        sent: list[Any] = []

        def listen(request: Any) -> Any:
            sent.append(request)
            return _HTTPX.Response(200, json={})

        self._ask_sdk(listen)
        return sent[0]

    def _read_by_sdk(self, status: int, headers: http.client.HTTPMessage, content: bytes) -> object:
        """Return what the SDK makes of an answer, or raise its error."""
        shown = [(k, v) for k, v in headers.items() if k.lower() != "transfer-encoding"]
        return self._ask_sdk(lambda _: _HTTPX.Response(status, headers=shown, content=content))

    def _ask_sdk(self, answer: Callable[[Any], Any]) -> object:
        with _HTTPX.Client(transport=_HTTPX.MockTransport(answer)) as nowhere:
            sdk = self._sdk.with_options(http_client=nowhere)
            return post_json(sdk, self._path, {"model": self._model})


def _has_proxy(scheme: str, host: str) -> bool:
    proxies = urllib.request.getproxies()
    return bool(proxies.keys() & {scheme, "all"}) and not urllib.request.proxy_bypass(host)


def _opener(url: Any, *, timeout_s: float) -> Callable[[], http.client.HTTPConnection]:
    """Return what makes a connection, which connects when it is first used."""
    host = url.raw_host.decode("ascii")
    if url.scheme != "https":
        return lambda: http.client.HTTPConnection(host, url.port, timeout=timeout_s)
    trusted: ssl.SSLContext = (
        _HTTPX.create_ssl_context()
    )  # the SDK's: also what SSL_CERT_FILE names
    return lambda: http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=trusted)


@dataclass(frozen=True, slots=True)
class _Idle:
    connection: http.client.HTTPConnection
    since: float


class _Stack:
    """Connections that wait for a call; the one that was used last is taken first.

    A deque's ends are safe to share, so that no thread waits for another.
    """

    def __init__(self, make: Callable[[], http.client.HTTPConnection]) -> None:
        self._make = make
        self._idle: deque[_Idle] = deque()
        self._is_closed = False

    def take(self) -> http.client.HTTPConnection:
        """Return a connection that the server has not closed, or a new one."""
        while self._idle:
            try:
                last = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if time.monotonic() - last.since < IDLE_S and not _is_readable(last.connection):
                return last.connection
            last.connection.close()
        return self._make()

    def give(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose answer was read."""
        if connection.sock is not None:  # the server may have asked to close it
            self._idle.append(_Idle(connection, time.monotonic()))
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close what waits; what is in use is closed when it comes back."""
        self._is_closed = True
        while self._idle:
            try:
                self._idle.pop().connection.close()
            except IndexError:
                break


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """Return True where an unused connection has something to say: that it ends."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
