"""Ids of groups in a node's texts, replaced by the real ids behind them.

A node that is too large for one prompt is written from groups of its inputs. A model cites such a
group by the id that its prompt shows, and may do so in a text; no view keeps it.
"""

import re
from collections.abc import Mapping

from hltm_spark.core.escaping import escape_attribute
from hltm_spark.core.records import NodeInput

MAX_SHOWN = 3
"""Real ids that stand in a text for groups that are named together."""

_EMPTY = re.compile(r"\s?\[[\s,;…]*\]")


class GroupIds:
    """The groups among a node's inputs, and how to take their ids out of a text."""

    def __init__(self, node: NodeInput) -> None:
        """Remember which real ids stand behind each group."""
        groups = [child for child in node.children if child.is_group]
        self._sources: Mapping[str, tuple[str, ...]] = {
            group.node_id.rpartition("/~")[2]: group.sources for group in groups
        }
        node_id = re.escape(node.node_id)
        escaped = re.escape(escape_attribute(node.node_id))
        one = rf"(?:(?:{node_id}|{escaped})/)?~[0-9a-f]{{8,}}"
        self._pattern = re.compile(rf"{one}(?:\s*[,;]\s*{one})*") if groups else None

    def replace_in(self, text: str) -> str:
        """Return the text with groups that stand together replaced by their first real ids."""
        if self._pattern is None or "~" not in text:
            return text
        return _EMPTY.sub("", self._pattern.sub(self._shown, text))

    def _shown(self, match: re.Match[str]) -> str:
        keys = re.findall(r"~([0-9a-f]{8,})", match[0])
        behind = [s for key in keys for s in self._sources.get(key, ())[:MAX_SHOWN]]
        return ", ".join(list(dict.fromkeys(behind))[:MAX_SHOWN])
