"""An object store on the loopback: a real server for real clients, which counts its requests."""

import http.client
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server


@dataclass
class ObjectServer:
    """What was asked of it.

    Attributes:
        requests: Method and path of each, in order of arrival.
        refused: Methods that are answered with 403.
    """

    port: int
    bucket: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def url(self, prefix: str, *, bucket: str = "") -> str:
        """Return the URL of a prefix, as conf has it."""
        bucket = bucket or self.bucket
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{bucket}/{prefix}?{options}"

    def puts(self) -> list[str]:
        """Return the paths that were written, in order."""
        return [path for method, path in self.requests if method == "PUT"]


class _QuietHandler(MotoRequestHandler):
    def log(self, *_: Any, **__: Any) -> None:
        """Say nothing of requests."""


@contextmanager
def serve_objects() -> Iterator[ObjectServer]:
    """Serve an empty bucket on a free port."""
    inner = DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        served.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if environ["REQUEST_METHOD"] in served.refused:
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        return inner(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_QuietHandler)
    # the buckets belong to the process, not to this server
    served = ObjectServer(server.server_port, f"journals-{uuid.uuid4().hex}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        _make_bucket(served)
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _make_bucket(served: ObjectServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("PUT", f"/{served.bucket}")
    connection.getresponse().read()
    connection.close()
    served.requests.clear()
