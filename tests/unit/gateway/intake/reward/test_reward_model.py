"""A submission with a reward model: stored by digests as the policy is, or refused with what is wrong with it."""

import json
from functools import partial

import pytest

from gradbus.ids import digest_of
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings


@pytest.fixture
def scorer(tmp_path, write_scorer):
    """Writes the reward model of `body`."""
    return partial(write_scorer, tmp_path / "roots" / "scorer")


@pytest.fixture
def body(tmp_path, write_model, scorer):
    """A spec whose models and rows lie under a root of the gateway."""
    write_model(tmp_path / "roots" / "model")
    scorer()
    (tmp_path / "roots" / "train.jsonl").write_text('{"prompt": "1+1="}\n')
    return {
        "name": "sums",
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rollout": {"max_new_tokens": 8, "group_size": 4},
        "reward": {"model": {"path": "scorer"}},
        "schedule": {"steps": 4, "groups_per_step": 2},
    }


async def test_the_folder_is_stored_by_digests(intake, objects, body, tmp_path):
    spec = await intake.accept(body, "key")
    folder = tmp_path / "roots" / "scorer"
    assert spec.reward.model.files == {path.name: digest_of(path.read_bytes()) for path in folder.iterdir()}
    assert await objects.has_blobs(spec.reward.model.files.values())
    assert (await intake.accept(spec.model_dump(), "key")) == spec, "a stored spec can be submitted again"


async def test_whether_it_leaves_the_accelerator_is_stored_and_only_a_reward_model_may(intake, refused, body):
    leaving = body | {"reward": {"model": {"path": "scorer", "offload": True}}}
    assert ((await intake.accept(leaving, "key")).reward.model.offload, (await intake.accept(body, "key")).reward.model.offload) == (
        True,
        False,
    )
    assert "given 30; allowed: true or false" in await refused(body | {"reward": {"model": {"path": "scorer", "offload": 30}}})
    assert (await refused(body | {"model": {"path": "model", "offload": True}})).startswith("model.offload: unknown field")


@pytest.mark.parametrize(
    ("labels", "config", "words"),
    [
        (0, {}, "the weights have no score.weight, the head of a reward model"),
        (2, {}, "score.weight has shape [2, 4], and a reward model has one label: [1, 4]"),
        (1, {"id2label": {"0": "bad", "1": "good"}}, "config.json states 2 labels"),
        (1, {"num_labels": 3}, "config.json states 3 labels"),
        (1, {"architectures": ["LlamaForCausalLM"]}, "['LlamaForCausalLM'], which are no reward model; use one of LlamaForSequence"),
        (1, {"architectures": ["T5ForSequenceClassification"], "model_type": "llama"}, "which are no reward model"),
        (1, {"architectures": ["Qwen2ForSequenceClassification"]}, "set model_type to 'qwen2'"),
    ],
)
async def test_a_folder_that_is_no_reward_model_is_refused(refused, body, scorer, labels, config, words):
    scorer(labels, **config)
    fault = await refused(body)
    assert fault.startswith("reward.model: ")
    assert words in fault


async def test_a_reward_model_that_is_nowhere_is_refused_by_its_own_field(refused, body):
    assert (await refused(body | {"reward": {"model": {"path": "elsewhere"}}})).startswith("reward.model.path: not a folder")


async def test_another_tokenizer_is_refused(refused, body, tmp_path, write_tokenizer):
    write_tokenizer(tmp_path / "roots" / "scorer", version="1.1")
    assert (await refused(body)).startswith("reward.model.files.tokenizer.json: reads the policy's tokens")


async def test_fewer_embeddings_than_the_policy_has_are_refused_and_more_are_not(refused, intake, body, scorer):
    scorer(vocab_size=15)
    assert "vocab_size 15; allowed: at least the policy's vocab_size, 16" in await refused(body)
    scorer(vocab_size=24)
    assert (await intake.accept(body, "key")).reward.model.files


async def test_a_sample_that_may_be_longer_than_the_scorers_context_is_refused(refused, intake, body, scorer):
    scorer(max_position_embeddings=32)
    assert "given 56 for the prompt + 8; allowed: at most 32 in all" in await refused(body)
    body["rollout"]["max_prompt_tokens"] = 24
    assert (await intake.accept(body, "key")).reward.model.files


async def test_a_score_has_no_components(refused, body):
    fault = await refused(body | {"algorithm": {"name": "gdpo"}})
    assert fault.startswith("algorithm.advantage: normalises each component of a reward, and this reward model has one")
    data = body["data"] | {"eval": "train.jsonl"}
    assert (await refused(body | {"data": data, "evaluation": {"metric": "exact"}})).startswith("evaluation.metric: no part of the reward")


async def test_the_operators_scorer_takes_the_place_of_a_reward_model(tmp_path, fork_server, objects, body):
    given = {"reward_service": "grpc://scorer:1", "model_roots": (tmp_path / "roots",), "cache_dir": tmp_path / "cache"}
    spec = await SpecIntake(objects, fork_server, GatewaySettings(**given), None).accept(body, "key")
    assert (spec.reward.service, spec.reward.model) == ("grpc://scorer:1", None)


async def test_code_that_a_configuration_names_is_not_stored(intake, objects, body, scorer):
    folder = scorer(auto_map={"AutoModel": "evil.Model"})
    files = (await intake.accept(body, "key")).reward.model.files
    assert "auto_map" not in json.loads(await objects.get_blob(files["config.json"]))
    assert "auto_map" in json.loads((folder / "config.json").read_text())
