"""The order in which a small run asks about its nodes."""

from collections.abc import Mapping
from typing import Any

from hltm_spark.pipeline.flow import Flow, Node, Steps

PARENTS: dict[Node, Node | None] = {
    ("t", "t"): None,
    ("t", "t/a"): ("t", "t"),
    ("t", "t/b"): ("t", "t"),
    ("t", "t/a/1"): ("t", "t/a"),
    ("t", "t/a/2"): ("t", "t/a"),
    ("t", "t/b/1"): ("t", "t/b"),
}


def request(name: str) -> dict[str, Any]:
    return {"tenant_id": "t", "request_hash": name}


def names(requests: list[Mapping[str, Any]]) -> list[str]:
    return [r["request_hash"] for r in requests]


class Noted:
    """Nodes that ask one request each, and what they were answered."""

    def __init__(self, parents: Mapping[Node, Node | None] = PARENTS) -> None:
        self.responses: dict[str, Mapping[Any, str]] = {}
        self.flow = Flow(parents, self.steps)

    def steps(self, node: Node) -> Steps:
        self.responses[node[1]] = yield [request(node[1])]

    def settle(self, *hashes: str) -> list[str]:
        for one in hashes:
            self.flow.settle(("t", one), f"answer to {one}")
        return names(self.flow.requests(most=100))


def test_a_node_is_asked_about_when_the_last_of_its_children_has_ended() -> None:
    noted = Noted()

    assert names(noted.flow.requests(most=100)) == ["t/a/1", "t/a/2", "t/b/1"]
    assert noted.settle("t/b/1") == ["t/b"], "its sisters' children are not waited for"
    assert noted.settle("t/a/2", "t/b") == []
    assert noted.settle("t/a/1") == ["t/a"]
    assert noted.settle("t/a") == ["t"]
    assert noted.settle("t") == []
    assert noted.flow.ended == len(PARENTS)
    assert noted.responses["t/b"] == {("t", "t/b"): "answer to t/b"}


def test_a_request_that_failed_has_no_response_and_stops_no_other() -> None:
    noted = Noted()
    noted.flow.requests(most=100)

    noted.flow.settle(("t", "t/b/1"), None)

    assert names(noted.flow.requests(most=100)) == ["t/b"]
    assert noted.responses["t/b/1"] == {}


def test_some_requests_come_up_while_the_rest_is_left_for_later() -> None:
    flow = Noted().flow

    assert names(flow.requests(most=2)) == ["t/a/1", "t/a/2"]
    assert not flow.is_waiting
    assert names(flow.requests(most=2)) == ["t/b/1"]
    assert flow.is_waiting


def test_a_node_without_requests_ends_at_once() -> None:
    def steps(node: Node) -> Steps:
        yield from ([request(node[1])] for _ in range(node == ("t", "t")))

    flow = Flow(PARENTS, steps)

    assert names(flow.requests(most=100)) == ["t"]
    assert flow.ended == len(PARENTS) - 1


def test_a_request_of_two_nodes_comes_up_once_and_answers_both() -> None:
    seen = []

    def steps(node: Node) -> Steps:
        seen.append((yield [request("same")]))
        seen.append((yield [request("same"), request("same")]))

    flow = Flow({("t", "a"): None, ("t", "b"): None}, steps)

    assert names(flow.requests(most=100)) == ["same"]
    flow.settle(("t", "same"), "yes")
    assert names(flow.requests(most=100)) == ["same"], "who keeps answers is not the flow"
    flow.settle(("t", "same"), "again")
    assert flow.requests(most=100) == []
    assert seen == [{("t", "same"): "yes"}] * 2 + [{("t", "same"): "again"}] * 2


def test_a_node_goes_on_when_all_its_requests_are_settled() -> None:
    def steps(_: Node) -> Steps:
        responses = yield [request("one"), request("two")]
        yield [request(",".join(sorted(responses.values())))]

    flow = Flow({("t", "t"): None}, steps)
    flow.requests(most=1)
    flow.settle(("t", "two"), "2")

    assert flow.is_waiting
    flow.settle(("t", "one"), "1")
    assert names(flow.requests(most=1)) == ["1,2"]


def test_a_flow_of_nothing_has_ended() -> None:
    flow = Flow({}, Noted().steps)

    assert flow.is_waiting
    assert flow.requests(most=1) == []
