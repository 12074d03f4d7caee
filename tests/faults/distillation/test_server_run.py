"""A run whose teacher is an SGLang server: it waits while the server is away, and ends when that has other weights."""

import asyncio

import pytest
import torch
from ledger import check, read_ledger
from sglang_peer import Faults, SGLangPeer
from smoke import EXAMPLE, FINAL, until
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradbus.client import Client
from gradbus.formats.tokens import unpack_logprobs
from gradbus.v1.group_pb2 import Group

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
STEPS, GROUPS = 6, 8


@pytest.fixture
def peer(example):
    """A server of the policy's own base model."""
    model, tokenizer = (kind.from_pretrained(example / "model") for kind in (AutoModelForCausalLM, AutoTokenizer))

    def table(ids):
        with torch.no_grad():
            return model(torch.tensor(ids)[None]).logits[0].float().log_softmax(-1).numpy()

    peer = SGLangPeer(table, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], vocab_size=model.config.vocab_size)
    yield peer
    peer.close()


@pytest.fixture
def taught(spec, example, peer):
    kept = {name: value for name, value in spec.items() if name not in {"reward", "evaluation"}}
    return kept | {
        "name": "taught",
        "data": {"train": str(example / "train.jsonl")},
        "algorithm": {"name": "opd"},
        "teacher": {"url": peer.url},
        "schedule": {"groups_per_step": GROUPS, "steps": STEPS},
        "checkpoint": {"every": 3, "keep": 100},
    }


@pytest.mark.slow  # the reference service's own tests have a server that is away
async def test_a_server_that_is_away_is_waited_for_and_every_answer_is_in_the_log(stack_of, taught, peer):
    async with stack_of(1) as stack:
        client = Client(stack.url, stack.api_key)
        run_id = (await asyncio.to_thread(client.submit, taught, EXAMPLE)).id
        await until(client, run_id, lambda run: run["progress"]["step"] >= 1)
        peer.faults = Faults(status=503)
        waiting = await until(client, run_id, lambda run: run["state"] == "waiting_for_reward")
        assert "503" in waiting["waiting_for"]
        await stack.kill("reference")  # its successor has never reached the server
        peer.faults = Faults()
        run = await until(client, run_id, lambda run: run["state"] in FINAL)
        assert (run["state"], run["deterministic"]) == ("succeeded", None)
        ledger = read_ledger(stack.state.root, run_id)
        assert check(ledger, GROUPS, STEPS, max_staleness=1, fixed_lag=True) == []
        for entry in ledger.entries.values():
            for sample, said in zip(Group.FromString(entry.group).samples, entry.teacher_logprobs, strict=True):
                if entry.version == 0:  # which is the teacher
                    assert unpack_logprobs(said) == pytest.approx(unpack_logprobs(sample.logprobs), abs=1e-4)
        client.close()


@pytest.mark.slow
async def test_other_weights_end_the_run_with_both_names(stack_of, taught, peer):
    async with stack_of(1) as stack:
        client = Client(stack.url, stack.api_key)
        run_id = (await asyncio.to_thread(client.submit, taught, EXAMPLE)).id
        await until(client, run_id, lambda run: run["progress"]["step"] >= 1)
        peer.weight_version = "step-9"
        run = await until(client, run_id, lambda run: run["state"] in FINAL)
        assert run["state"] == "failed"
        assert "had weights 'default'" in run["reason"]
        assert "'step-9'" in run["reason"]
        client.close()
