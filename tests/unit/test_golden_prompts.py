from difflib import unified_diff

import pytest

from tests.golden_prompts import GOLDEN, REPOSITORY, golden_files, rendered_prompts

RENDERED = rendered_prompts()
PROMPT_IDS = sorted(
    path.relative_to(REPOSITORY / "prompts").with_suffix("").as_posix()
    for path in (REPOSITORY / "prompts").rglob("*.md")
)


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_a_rendered_prompt_is_the_one_on_file(name: str) -> None:
    path = GOLDEN / name
    on_file = path.read_text(encoding="utf-8") if path.is_file() else ""

    if on_file != RENDERED[name]:
        lines = unified_diff(
            on_file.splitlines(), RENDERED[name].splitlines(), "on file", "rendered", lineterm=""
        )
        pytest.fail(
            f"tests/golden/{name} is not what is rendered; where the change is meant, run: "
            f"make golden\n{chr(10).join(lines)}",
            pytrace=False,
        )


@pytest.mark.parametrize("prompt_id", PROMPT_IDS)
def test_every_prompt_file_has_its_golden_file(prompt_id: str) -> None:
    assert f"{prompt_id}.txt" in RENDERED, (
        f"prompts/{prompt_id}.md is rendered nowhere in tests/golden_prompts.py; add it there, "
        "then run: make golden"
    )
    assert (GOLDEN / f"{prompt_id}.txt").is_file(), (
        f"tests/golden/{prompt_id}.txt is missing; run: make golden"
    )


def test_every_golden_file_is_rendered_by_a_prompt() -> None:
    left_over = sorted(golden_files().keys() - RENDERED.keys())

    assert not left_over, f"nothing renders {left_over} under tests/golden; run: make golden"
