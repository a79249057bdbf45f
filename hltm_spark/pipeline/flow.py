"""The order of a small run: a node is asked about as soon as its children are written.

No level waits for another, so that a run takes as long as its longest path from a leaf to the
tenant, or as its calls take at the model's limits, not as the sum of its levels' slowest nodes.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = tuple[str, str]
"""tenant_id, node_id."""
Key = tuple[str, str]
"""tenant_id, request_hash."""
Steps = Generator[Sequence[Mapping[str, Any]], Mapping[Key, str], None]
"""The writing of one node: yields requests, and goes on with their responses by key; a request
that failed has none."""


def request_key(request: Mapping[str, Any]) -> Key:
    """Return what a request is known by."""
    return request["tenant_id"], request["request_hash"]


@dataclass(slots=True, eq=False)
class _Writing:
    """A node that has begun: what it waits for, and what came of it."""

    node: Node
    steps: Steps
    missing: set[Key] = field(default_factory=set)
    responses: dict[Key, str] = field(default_factory=dict)


class Flow:
    """The nodes of a run, each of which begins when the last of its children has ended."""

    def __init__(self, parents: Mapping[Node, Node | None], begin: Callable[[Node], Steps]) -> None:
        """Prepare; nothing begins before `requests`.

        Args:
            parents: Parent by node, None at the tenant; a parent is one of the nodes.
            begin: Returns the steps of a node.
        """
        self._parents, self._begin = parents, begin
        self._children = dict.fromkeys(parents, 0)  # that have not ended
        for parent in parents.values():
            if parent is not None:
                self._children[parent] += 1
        self._ready = deque(sorted(node for node, left in self._children.items() if not left))
        self._answered: deque[_Writing] = deque()
        self._waiting: dict[Key, list[_Writing]] = {}
        self.ended = 0

    @property
    def is_waiting(self) -> bool:
        """Tell whether every node that has begun waits for a request, and no other can begin."""
        return not self._answered and not self._ready

    def requests(self, *, most: int) -> list[Mapping[str, Any]]:
        """Go on until some requests came up, or as far as is possible; return them, each once.

        Every one of them is to be settled; until then the nodes that yielded it wait.

        Args:
            most: Nodes are left alone for now once there are so many requests.
        """
        fresh: list[Mapping[str, Any]] = []
        while len(fresh) < most and not self.is_waiting:
            if self._answered:
                writing = self._answered.popleft()
                self._advance(writing, writing.responses, fresh)
            else:
                node = self._ready.popleft()
                self._advance(_Writing(node, self._begin(node)), None, fresh)
        return fresh

    def settle(self, key: Key, response: str | None) -> None:
        """Give a request's response to the nodes that wait for it; None where it failed."""
        for writing in self._waiting.pop(key):
            writing.missing.discard(key)
            if response is not None:
                writing.responses[key] = response
            if not writing.missing:
                self._answered.append(writing)

    def _advance(
        self,
        writing: _Writing,
        responses: Mapping[Key, str] | None,
        fresh: list[Mapping[str, Any]],
    ) -> None:
        try:
            asked = next(writing.steps) if responses is None else writing.steps.send(responses)
        except StopIteration:
            self._end(writing.node)
            return
        writing.responses = {}
        writing.missing = set(self._wait(writing, asked, fresh))

    def _wait(
        self, writing: _Writing, asked: Iterable[Mapping[str, Any]], fresh: list[Mapping[str, Any]]
    ) -> Iterable[Key]:
        for request in asked:
            key = request_key(request)
            if key not in self._waiting:
                fresh.append(request)
            waiting = self._waiting.setdefault(key, [])
            if writing not in waiting:
                waiting.append(writing)
            yield key

    def _end(self, node: Node) -> None:
        self.ended += 1
        parent = self._parents[node]
        if parent is not None:
            self._children[parent] -= 1
            if not self._children[parent]:
                self._ready.append(parent)
