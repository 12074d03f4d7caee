"""Where reward models begin: transformers reads the folder, whose weights are the language model's files."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig, LlamaForCausalLM

from gradbus.errors import ModelError, SpecError
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus_gateway.intake.model.scoring_head import is_reward_model, with_scoring_head
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings

PAIR = '{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n'


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


@pytest.fixture
def base(tmp_path, write_tokenizer):
    """Writes a random language model under a root of the gateway; `files` is the number of its files of weights."""

    def write(tied=True, files=1, **config):
        torch.manual_seed(0)
        sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied, max_position_embeddings=64))
        folder = tmp_path / "roots" / "model"
        model.save_pretrained(folder, max_shard_size="50GB" if files == 1 else "3KB")
        assert (len(list(folder.glob("*.safetensors"))) > 1) == (files > 1)
        given = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(given | config))
        write_tokenizer(folder)
        return folder

    return write


async def stored(objects, folder):
    return {path.name: await objects.put_blob(path.read_bytes()) for path in folder.iterdir()}


async def written(objects, files, folder):
    folder.mkdir()
    for name, digest in files.items():
        (folder / name).write_bytes(await objects.get_blob(digest))
    return folder


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("count", [1, 2], ids=["one file", "shards"])
async def test_transformers_reads_it_and_its_digests_repeat(objects, base, tmp_path, tied, count):
    files = await stored(objects, base(tied, count))
    made = await with_scoring_head(objects, files)
    assert await with_scoring_head(objects, files) == made
    assert await is_reward_model(objects, made)
    assert not await is_reward_model(objects, files)
    weights = {digest for name, digest in files.items() if name.endswith(".safetensors")}
    assert weights < set(made.values()), "the weights are not copied"
    folder = await written(objects, made, tmp_path / "scorer")
    model, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    assert model.config.num_labels == 1
    assert not model.score.weight.any()
    assert model.score.weight.dtype == torch.float32
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "roots" / "model").model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.model.state_dict().items())


async def test_a_family_without_reward_models_is_refused(objects, base):
    files = await stored(objects, base(model_type="opt"))
    with pytest.raises(ModelError, match="no reward models of 'opt'; use one of llama, qwen2"):
        await with_scoring_head(objects, files)


@pytest.mark.parametrize("files", [{}, {"config.json": "sha256:" + "0" * 64}, {"config.json": "evil"}])
async def test_what_is_not_stored_is_no_reward_model(objects, files):
    assert not await is_reward_model(objects, files)


@pytest.mark.parametrize("config", ["[]", "{", '{"architectures": "LlamaForSequenceClassification"}', '{"architectures": [[]]}'])
async def test_a_config_of_other_types_is_no_reward_model(objects, config):
    assert not await is_reward_model(objects, {"config.json": await objects.put_blob(config.encode())})


@pytest.fixture
def submit(tmp_path, fork_server, objects):
    """Submits pairs to be ranked by a model that starts from the base."""
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache")
    intake = SpecIntake(objects, fork_server, settings, None)

    async def accept(**changes):
        (tmp_path / "roots" / "pairs.jsonl").write_text(PAIR)
        body = {"name": "ranks", "kind": "reward_model", "model": {"path": "model"}, "data": {"train": "pairs.jsonl"}}
        return await intake.accept(body | {"schedule": {"steps": 4, "groups_per_step": 2}} | changes, "key")

    return accept


@pytest.mark.parametrize("config", [{}, {"num_labels": 3}, {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}])
async def test_labels_of_another_head_are_left_behind(objects, base, submit, config):
    folder = base(**config)
    spec = await submit()
    assert spec.model.files["model-00001-of-00002.safetensors"] == digest_of((folder / "model.safetensors").read_bytes())
    stated = json.loads(await objects.get_blob(spec.model.files["config.json"]))
    assert (stated["id2label"], stated.get("num_labels")) == ({"0": "LABEL_0"}, None)
    assert await submit(**spec.model_dump(mode="json")) == spec, "a stored spec can be submitted again"


async def test_the_family_is_checked_at_submission(base, submit):
    base(architectures=["GPT2LMHeadModel"], model_type="gpt2")
    with pytest.raises(SpecError) as refused:
        await submit()
    assert [fault.path for fault in refused.value.faults] == ["model"]
