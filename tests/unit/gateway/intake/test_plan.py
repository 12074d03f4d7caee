"""Plans of stored models wait for their turn."""

import json

import pytest

from gradbus.objects import ObjectStore
from gradbus.plan import card_of
from gradbus.spec import RunSpec
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.plan import Planner, PlanQuestion

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
BODY = {"name": "plan", "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}, "schedule": {"steps": 10}}


async def test_a_plan_waits_for_its_turn(tmp_path):
    objects = ObjectStore.open(f"file://{tmp_path}/objects")
    files = {"config.json": await objects.put_blob(json.dumps(LLAMA).encode())}
    spec = RunSpec.model_validate(BODY | {"model": {"files": files}})
    turns = CheckTurns(1, 0.05)
    planner, question = Planner(objects, turns), PlanQuestion(card_of("l4"), 2, None, None)
    async with turns.turn("other"):
        with pytest.raises(ProblemError, match="send this one again"):
            await planner.plan(spec, question, "key")
    assert (await planner.plan(spec, question, "key")).bill.size.architecture == "LlamaForCausalLM"
