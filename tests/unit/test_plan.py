import json
from dataclasses import replace
from typing import Any

import pytest

from hltm_spark.cli.plan import plan_lines
from hltm_spark.core.prompts import TASKS
from hltm_spark.core.records import Child, NodeInput
from hltm_spark.core.views import assemble_views
from hltm_spark.models.fan_in import item_tokens
from hltm_spark.models.parsing import parse_answer
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.plan import LevelPlan, Plan
from hltm_spark.pipeline.predict import History, PredictingClient, Size, predict_answers
from hltm_spark.pipeline.token_scale import Scale
from tests.builders import child, document, node, settings

OPENAI = {"provider": "openai", "model": "m"}


def client(layout: str = "fused", **sections: Any) -> PredictingClient:
    chosen = settings(**{"views": {"layout": layout}, "llm": OPENAI, **sections})
    return PredictingClient(prompts=NodePrompts.load(chosen), history=History.empty(chosen))


def open_request(given: NodeInput, task: str, **fields: Any) -> dict[str, Any]:
    row = {"tenant_id": "acme", "tenant_key": "k", "node_id": given.node_id, "level": given.level}
    row |= {"request_hash": "h", "summary": None, "payload": json.dumps(given.to_dict())}
    return {**row, "task": task, "stored": None, **fields}


@pytest.mark.parametrize("layout", ["fused", "separate"])
@pytest.mark.parametrize("tokens", [80, 900])
def test_predicted_answers_make_a_memory_of_the_wanted_size(layout: str, tokens: int) -> None:
    given, asked = node(child("acme/s1/p1"), document("d1")), client(layout)
    asked = replace(asked, sizes={("acme", "acme/s1"): Size(tokens=tokens, summary=tokens // 3)})
    fields: dict[str, Any] = {}

    for task in TASKS[layout]:
        request = asked.prompts.request(given, task, summary=fields.get("summary"))
        text = asked.complete(request).text
        fields |= parse_answer(text, "stop", output=task, source_ids=given.source_ids).fields
    written = Child(node_id=given.node_id, views=assemble_views(given, fields))

    assert item_tokens(written, asked.prompts) == pytest.approx(tokens, abs=3)


def test_a_stored_memory_decides_the_size_of_the_answer() -> None:
    asked, given = client(), node(document("d1"), node_id="acme/s1/p1", level="project")
    stored = child("acme/s1/p1", summary="boats " * 300).to_dict()

    plain, sized = predict_answers(
        [open_request(given, "fused"), open_request(given, "fused", stored=stored)],
        asked,
        run_id="r",
    )

    assert sized["task"] == "leaf/fused"
    assert sized["prompt_tokens"] == plain["prompt_tokens"] > 300
    assert len(sized["response"]) > len(plain["response"]) * 1.1


def test_a_prompt_beyond_the_budget_is_not_counted() -> None:
    long = node(document("d1", text="boat " * 30_000), level="project")

    assert list(predict_answers([open_request(long, "fused")], client(), run_id="r")) == []


def test_the_extractive_provider_takes_no_tokens() -> None:
    asked = client(llm={"provider": "extractive"})

    (row,) = predict_answers([open_request(node(document()), "fused")], asked, run_id="r")

    assert row["prompt_tokens"] == 0


def test_a_new_node_is_as_large_as_stored_ones_or_else_as_answers_on_record() -> None:
    empty = History(completions={}, sizes={}, quarter=512)
    paid = {("seat", "parent/fused"): (2, 600), ("project", "leaf/fused"): (3, 300)}
    known = replace(empty, completions=paid)
    stored = replace(known, sizes={"seat": Size(tokens=77, summary=40)})

    assert empty.size("seat", TASKS["fused"]).tokens == 512
    assert known.size("seat", TASKS["fused"]).tokens == 300
    assert known.size("contract", TASKS["fused"]).tokens == 180
    assert stored.size("seat", TASKS["fused"]).tokens == 77
    assert known.completion_tokens("contract", "parent/fused") == 300
    assert empty.completion_tokens("contract", "parent/fused") == 512


def test_tokens_are_scaled_by_the_nearest_prompts_on_record() -> None:
    few = Scale(by_prompt={("project", "leaf/fused"): (19, 1000, 500)})
    enough = Scale(
        by_prompt={
            ("project", "leaf/fused"): (19, 1000, 500),
            ("seat", "parent/fused"): (1, 100, 80),
        }
    )

    assert few.history == 0
    assert few.factor("project", "leaf/fused") == pytest.approx(1 / 1.35)
    assert enough.factor("project", "leaf/fused") == 0.5
    assert enough.factor("contract", "parent/fused") == 0.8
    assert enough.factor("seat", "parent/summary") == pytest.approx(580 / 1100)


def test_a_plan_in_words_has_a_line_a_level_and_says_what_it_means() -> None:
    planned = Plan(
        nodes_touched=3, calls=3, prompt_tokens=900, is_upper_bound=True, unchanged=7,
        levels=(LevelPlan(level="contract", nodes=1, calls=1), LevelPlan(level="seat", nodes=2)),
    )  # fmt: skip

    lines = plan_lines(planned, settings(llm=OPENAI))
    text = "\n".join(lines)

    assert [line.split()[0] for line in lines[:4]] == ["level", "contract", "seat", "all"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert "7 nodes stay as they are" in text
    assert "upper bound" in text
    assert "conf has no [prices] for model 'm'" in text
    assert "without history" in text


def test_a_root_without_documents_takes_nothing() -> None:
    chosen = settings()

    values = Plan.empty(chosen).summary()

    assert (values["nodes_touched"], values["calls"], values["cost"]) == (0, 0, 0.0)
    assert [level["level"] for level in values["levels"]] == ["contract", "seat", "project"]
