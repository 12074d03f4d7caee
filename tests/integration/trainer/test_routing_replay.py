"""Routes from a server's answer through the group, the log in a real buffer and the batch into a step of a mixture of experts."""

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from gradbus.algorithms import Algorithm
from gradbus.buffer import BufferSettings, load_functions, open_buffer
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.formats.model_config import read_model_config
from gradbus.spec import AlgorithmSpec
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus_kernels.models.packing import OWN_CHOICE
from gradbus_rollout.engines.base import GroupCompletion, PromptGroup, RouteShape
from gradbus_rollout.engines.sglang import SGLangConfig
from gradbus_rollout.engines.sglang.partial_sample import PartialSample
from gradbus_rollout.tasks.samples import group_message
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch_builder import build_batch
from gradbus_trainer.step.groups import LoggedGroup

LAYERS, EXPERTS, CHOSEN = 3, 8, 2
PROMPT = (5, 6, 7, 8)
RESPONSES = ((9, 10, 11), (12, 13, 14, 15, 16))
LABEL = "0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three layers, of which the second is dense."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    made = tmp_path_factory.mktemp("moe")
    Qwen3MoeForCausalLM(config).save_pretrained(made)
    return made


@pytest.fixture
async def log(buffer_url, run_id):
    client = open_buffer(BufferSettings(buffer_url))
    await load_functions(client)
    found = ExperienceLog(client, run_id)
    await found.open_term(1)
    yield found, GroupStore(client, run_id)
    await client.aclose()


def answer(tokens, first, end, lost=0, finish="stop"):
    """As SGLang 0.5.21 gives it, without its last `lost` rows: int32, zeros in the dense layer."""
    rows = np.zeros((end - first - lost, LAYERS, CHOSEN), "<i4")
    for layer in (0, 2):
        rows[:, layer] = (np.arange(first, end - lost)[:, None] + layer + np.arange(CHOSEN)) % EXPERTS
    return {
        "meta_info": {
            "finish_reason": {"type": finish},
            "completion_tokens": len(tokens),
            "weight_version": LABEL,
            "output_token_logprobs": [[-1.5, token, None] for token in tokens],
            "routed_experts": base64.b64encode(rows.tobytes()).decode(),
        }
    }


def sampled(folder, lost=0):
    """A group of two; the second sample was interrupted after two tokens."""
    shape = RouteShape.of(read_model_config(folder))
    prompt, config = PromptGroup("0", PROMPT, (1, 2)), SGLangConfig(max_new_tokens=8, routes=shape)
    first, second = (PartialSample(prompt, n, config) for n in range(len(prompt.seeds)))
    whole = first.take(answer(RESPONSES[0], 0, len(PROMPT) + 2), {LABEL: 0})
    assert second.take(answer(RESPONSES[1][:2], len(PROMPT), len(PROMPT) + 1, finish="abort"), {LABEL: 0}) is None
    begin = second.request("r", LABEL)["routed_experts_start_len"]
    parts = second.take(answer(RESPONSES[1][2:], begin, len(PROMPT) + 4, lost), {LABEL: 0})
    header = Group(run_id="r", index=0)
    return group_message(header, prompt, GroupCompletion("0", (whole, parts), routed=shape), ["", ""])


async def logged(log, group):
    """The group as a trainer reads it from the log."""
    entries, groups = log
    await groups.put([group])
    stored = (await groups.get([0]))[0]
    rewards = [
        SampleReward(sample_id=sample.sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=float(sample.n)) for sample in stored.samples
    ]
    entry = LogEntry(index=0, verdict=Verdict.VERDICT_TRAIN, group=stored.SerializeToString(), rewards=rewards)
    await entries.append(1, {0: entry})
    (found,) = await entries.read("0-0", 10)
    return LoggedGroup.of(found, Algorithm(AlgorithmSpec(), 8))


def expected(tokens):
    """The routes of the first tokens of a sequence, the layers with experts alone."""
    ids = np.arange(tokens)[:, None, None] + np.array([0, 2])[None, :, None] + np.arange(CHOSEN)
    return np.concatenate([ids % EXPERTS, np.full_like(ids[:1], OWN_CHOICE)])


async def test_routes_come_from_the_servers_answer_into_the_batch(folder, log):
    batch, stats = build_batch(0, [await logged(log, sampled(folder))])
    for sample, response in zip(batch.samples, RESPONSES, strict=True):
        assert (sample.routes == expected(len(PROMPT) + len(response) - 1)).all()
    found = stats.to_json()
    assert (found["routes_replayed"], found["routes_not_replayed"]) == (len(PROMPT) + 2 + 4, 0)


async def test_three_rows_that_the_server_lost_are_three_tokens_that_choose(folder, log):
    batch, stats = build_batch(0, [await logged(log, sampled(folder, lost=3))])
    assert (batch.samples[1].routes[-4:] == OWN_CHOICE).all()
    found = stats.to_json()
    assert (found["routes_replayed"], found["routes_not_replayed"]) == (len(PROMPT) + 2 + 1, 3)


async def test_a_step_sends_each_token_to_the_experts_that_sampled_it(folder, log, make_spec):
    batch, _ = build_batch(0, [await logged(log, sampled(folder))])
    steps = {"steps": 1, "groups_per_step": 1}
    replaying = make_spec(rollout={"engine": "sglang", "pause": "abort", "routing_replay": True}, schedule=steps)
    plain = make_spec(rollout={"engine": "sglang", "pause": "abort"}, schedule=steps)
    replayed, chosen, again = (TorchLearner(folder, spec).train(batch) for spec in (replaying, plain, replaying))
    assert replayed == again
    assert replayed.ratio.logprob_diff != chosen.ratio.logprob_diff
    without = replace(batch, samples=[replace(sample, routes=None) for sample in batch.samples])
    assert TorchLearner(folder, replaying).train(without) == TorchLearner(folder, plain).train(batch) == chosen


def test_a_group_without_replay_is_as_before_and_routes_take_a_quarter_of_the_servers_bytes(folder):
    group = sampled(folder)
    routed, served = group.ByteSize(), (len(PROMPT) + 2 + 4) * 2 * CHOSEN * 4
    group.ClearField("routed_experts")
    for sample in group.samples:
        sample.ClearField("routed_experts")
    assert routed - group.ByteSize() <= 0.26 * served + 14  # and the names and lengths of six fields
    prompt, config = PromptGroup("0", PROMPT, (1, 2)), SGLangConfig(max_new_tokens=8)
    done = tuple(
        PartialSample(prompt, n, config).take(answer(tokens, 0, len(PROMPT) + len(tokens) - 1), {LABEL: 0})
        for n, tokens in enumerate(RESPONSES)
    )
    assert group_message(Group(run_id="r", index=0), prompt, GroupCompletion("0", done), ["", ""]) == group
