"""JSON posted to one URL as the SDK would post it, at a fraction of what the SDK takes for it.

With hundreds of calls in flight the processor is what a call stage waits for: the SDK builds each
request anew from its options, and its pool looks at every open connection at each call. Here the
SDK says once what it sends (URL, key, headers), and reads every answer that is not a plain success,
so that its errors stay its own. urllib3 holds the connections.
"""

import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
import urllib3

from hltm_spark.models.retrying import NoAnswerError

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

    def __init__(
        self, sdk: openai.OpenAI, path: str, *, model: str, timeout_s: float, most: int
    ) -> None:
        """Ask the SDK what it sends; no call is made.

        Args:
            sdk: Client of the endpoint; it stays open when this is closed.
            path: Below the API's root.
            model: As every body names it: in the URL of some endpoints.
            timeout_s: For the connection, and for each wait for a part of the answer.
            most: Calls at once, whose connections are kept.
        """
        self._sdk, self._path, self._model = sdk, path, model
        sent = self._sent_by_sdk()
        self._request, self._target = sent, sent.url.raw_path.decode("ascii")
        # the length is each call's own; to unpack an answer takes longer here than to receive it
        self._headers = dict(sent.headers) | {"accept-encoding": "identity"}
        del self._headers["content-length"]
        self._is_proxied = _has_proxy(sent.url.scheme, sent.url.host)
        self._pool = _pool_for(sent.url, timeout_s=timeout_s, most=most)

    def post(self, body: dict[str, Any]) -> object:
        """Return the JSON that the endpoint answers.

        Raises:
            APIError: Any other status than success, or no connection.
            NoAnswerError: A success whose body is no JSON, such as a gateway's page.
        """
        if self._is_proxied:
            return post_json(self._sdk, self._path, body)
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        answer = self._exchange(content)
        if 300 <= answer.status < 400:
            return post_json(self._sdk, self._path, body)  # it knows whom it may follow
        if answer.status >= 400 or "content-encoding" in answer.headers:
            return self._read_by_sdk(answer)
        try:
            return json.loads(answer.data)
        except ValueError:
            raise NoAnswerError("HTTP 200 with a body that is not JSON") from None

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _exchange(self, content: bytes) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool.urlopen(
                "POST",
                self._target,
                body=content,
                headers=self._headers,
                retries=False,
                redirect=False,
                decode_content=False,
            )
        except urllib3.exceptions.ReadTimeoutError as error:
            raise openai.APITimeoutError(request=self._request) from error
        except (urllib3.exceptions.HTTPError, ValueError) as error:  # ValueError: a header
            raise openai.APIConnectionError(request=self._request) from error

    def _sent_by_sdk(self) -> Any:
        """Return the request that the SDK would send, as its HTTP client knows it."""
        sent: list[Any] = []

        def listen(request: Any) -> Any:
            sent.append(request)
            return _HTTPX.Response(200, json={})

        self._ask_sdk(listen)
        return sent[0]

    def _read_by_sdk(self, answer: urllib3.BaseHTTPResponse) -> object:
        """Return what the SDK makes of an answer, or raise its error."""
        shown = [(k, v) for k, v in answer.headers.items() if k.lower() != "transfer-encoding"]
        return self._ask_sdk(
            lambda _: _HTTPX.Response(answer.status, headers=shown, content=answer.data)
        )

    def _ask_sdk(self, answer: Callable[[Any], Any]) -> object:
        with _HTTPX.Client(transport=_HTTPX.MockTransport(answer)) as nowhere:
            sdk = self._sdk.with_options(http_client=nowhere)
            return post_json(sdk, self._path, {"model": self._model})


def _has_proxy(scheme: str, host: str) -> bool:
    proxies = urllib.request.getproxies()
    return bool(proxies.keys() & {scheme, "all"}) and not urllib.request.proxy_bypass(host)


def _pool_for(url: Any, *, timeout_s: float, most: int) -> urllib3.HTTPConnectionPool:
    host = url.raw_host.decode("ascii")
    shared: dict[str, Any] = {"port": url.port, "timeout": timeout_s, "maxsize": most}
    if url.scheme != "https":
        return urllib3.HTTPConnectionPool(host, **shared)
    trusted = _HTTPX.create_ssl_context()  # the SDK's: also what SSL_CERT_FILE names
    return urllib3.HTTPSConnectionPool(host, ssl_context=trusted, **shared)
