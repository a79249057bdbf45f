import shutil
from pathlib import Path

import pytest

from hltm_spark.core.config import Settings
from hltm_spark.core.prompts import TASKS
from hltm_spark.core.records import NodeInput
from hltm_spark.models.requests import NodePrompts
from tests.builders import child, document, node, settings
from tests.golden_prompts import REPOSITORY

FILES = sorted(
    path.relative_to(REPOSITORY / "prompts").with_suffix("").as_posix()
    for path in (REPOSITORY / "prompts").rglob("*.md")
)
LEAF = node(document("d1"))
PARENT = node(child("acme/s1/p1"), document("d1"))


def own_prompts(folder: Path, layout: str) -> Settings:
    """Return settings with a copy of the shipped prompts in a folder."""
    shutil.copytree(REPOSITORY / "prompts", folder, dirs_exist_ok=True)
    views = {"layout": layout, "prompts": str(folder)}
    return settings(views=views, llm={"provider": "openai", "model": "m"})


def hashes(prompts: NodePrompts, given: NodeInput) -> dict[str, str]:
    """Return the request hash of each task of a node by its prompt."""
    found = {}
    for task in TASKS[prompts.layout]:
        request = prompts.request(given, task, summary="s" if "sentence" in task else None)
        found[request.task] = prompts.request_hash(request, tenant_id="acme")
    return found


@pytest.mark.parametrize("layout", sorted(TASKS))
@pytest.mark.parametrize("prompt_id", FILES)
def test_an_edited_prompt_changes_what_depends_on_it_and_nothing_else(
    tmp_path: Path, prompt_id: str, layout: str
) -> None:
    chosen = own_prompts(tmp_path, layout)
    before = NodePrompts.load(chosen)
    file = tmp_path / f"{prompt_id}.md"
    edited = file.read_text(encoding="utf-8").replace("## system\n", "## system\nBe brief.\n")
    file.write_text(edited, encoding="utf-8")

    after = NodePrompts.load(chosen)

    kind, _, task = prompt_id.partition("/")
    is_used = task in TASKS[layout]
    changes_leaves, changes_parents = is_used and kind == "leaf", is_used and kind == "parent"
    for is_leaf, is_changed in ((True, changes_leaves), (False, changes_parents)):
        fingerprints = {p.fingerprint_of(is_leaf=is_leaf) for p in (before, after)}
        assert len(fingerprints) == 1 + is_changed
    assert (before.fingerprint != after.fingerprint) == (changes_leaves or changes_parents)
    asked = {**hashes(before, LEAF), **hashes(before, PARENT)}
    asked_now = {**hashes(after, LEAF), **hashes(after, PARENT)}
    changed = {name for name in asked if asked[name] != asked_now[name]}
    assert changed == ({prompt_id} if is_used and kind in {"leaf", "parent"} else set())
