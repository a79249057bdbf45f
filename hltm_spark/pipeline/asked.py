"""One input of a small run, or one group of a wide one, and what was answered on it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hltm_spark.core.prompts import TASKS, item_values
from hltm_spark.core.records import NodeInput, Views
from hltm_spark.models.fan_in import Group, items_tokens, next_input, split_input
from hltm_spark.models.requests import WAVES, NodePrompts
from hltm_spark.pipeline.flow import Key
from hltm_spark.pipeline.memory import answered_summary, answered_views, written_node
from hltm_spark.pipeline.requests import InputRecord, to_node_input


@dataclass(slots=True)
class Asked:
    """One node, or one group of a wide node's items, and what was answered on it."""

    row: Mapping[str, Any]
    node: NodeInput
    is_group: bool = False
    is_wide: bool = False
    responses: dict[str, str] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    parts: dict[str, "Asked"] = field(default_factory=dict)
    is_failed: bool = False
    waiting: dict[Key, str] = field(default_factory=dict)
    shown: Mapping[str, str] | None = None

    @classmethod
    def of_items(
        cls,
        columns: Mapping[str, Any],
        items: Sequence[Mapping[str, Any]],
        prompts: NodePrompts,
        *,
        level: str,
    ) -> Self:
        """Return a node from its items, with the fingerprint that `fold_items` gives it.

        Args:
            columns: `IDENTITY` of the node.
            items: Rows of `document_item` and `child_item`, in order.
            prompts: Decide the fingerprint.
            level: The level's name in conf.
        """
        record = InputRecord()
        values = [item["item"] for item in items if record.note(item, item["item"])]
        identity = {name: columns[name] for name in ("tenant_id", "node_id")}
        node = to_node_input(values, level=level, **identity)
        shown = item_values(node)
        is_wide = items_tokens(shown) > prompts.room(node)
        row = {**columns, "level": level, **record.columns(prompts, is_wide=is_wide)}
        return cls(row, node, is_wide=is_wide, shown=None if is_wide else shown)

    @property
    def tenant_id(self) -> str:
        """Tenant of the node."""
        return self.node.tenant_id

    def split(self, prompts: NodePrompts) -> bool:
        """Split the input into groups where it is beyond the budget; tell whether it is."""
        self.groups = split_input(self.node, prompts) if self.is_wide else ()
        return bool(self.groups)

    def ask_group(self, group: Group) -> "Asked | None":
        """Return what is to be asked about a group; None for a single item, which is passed on."""
        if group.is_single:
            return None
        self.parts[group.key] = Asked(self.row, group.node, is_group=True)
        return self.parts[group.key]

    def take_groups(self, prompts: NodePrompts) -> None:
        """Replace the input by its groups' memories, or fail where one has none."""
        tasks = set(TASKS[prompts.layout])
        if any(part.responses.keys() != tasks for part in self.parts.values()):
            self.is_failed = True
            return
        views = {key: part.views(prompts) for key, part in self.parts.items()}
        self.node = next_input(self.node, self.groups, views)
        self.parts = {}

    def views(self, prompts: NodePrompts) -> Views:
        """Return the views of a group that was answered."""
        return answered_views(self.node, self.responses, prompts)

    def requests(self, tasks: Iterable[str], prompts: NodePrompts) -> Iterator[dict[str, Any]]:
        """Yield the requests of one wave; a later wave needs the summary of an earlier one."""
        is_first = tuple(tasks) == WAVES[prompts.layout][0]
        if not self.node.source_ids or not (is_first or "summary" in self.responses):
            return
        summary = (
            None if is_first else answered_summary(self.node, self.responses["summary"], prompts)
        )
        for task in tasks:
            request = prompts.request(
                self.node, task, summary=summary, is_group=self.is_group, items=self.shown
            )
            key = prompts.request_hash(request, tenant_id=self.tenant_id)
            self.waiting[self.tenant_id, key] = task
            yield {
                "tenant_id": self.tenant_id,
                "node_id": self.node.node_id,
                "level": self.node.level,
                "task": task,
                "request_hash": key,
                "request": request,
                "source_ids": self.node.source_ids,
            }

    def take(self, responses: Mapping[Key, str]) -> None:
        """Keep the responses to what was asked last."""
        for key, task in self.waiting.items():
            if key in responses:
                self.responses[task] = responses[key]
        self.waiting = {}

    def written(self, prompts: NodePrompts, *, run_id: str) -> dict[str, Any]:
        """Return the node's `WRITTEN` row: without any response where a group failed."""
        responses = {} if self.is_failed else self.responses
        return written_node(self.row, self.node, responses, prompts, run_id=run_id)
