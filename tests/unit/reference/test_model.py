"""The frozen model's log-probabilities."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from family_lab import VOCABULARY, logprobs_of, save
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)
from transformers_lab import make_transformers_model

from gradbus.spec import LoraSpec
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.models.lora import add_adapters
from gradbus_reference.model import ReferenceModel, ScoringModel, VersionWeights
from gradbus_trainer.learners.working_weights import WorkingWeights


@dataclass(frozen=True)
class Tokens:
    prompt_ids: np.ndarray
    token_ids: np.ndarray


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3)).save_pretrained(path)
    return path


@pytest.fixture
def sequences():
    rng = np.random.default_rng(0)
    lengths = [(4, 3), (4, 1), (2, 6), (7, 2), (1, 1)]
    return [Tokens(*(rng.integers(0, 17, size).astype(np.int32) for size in pair)) for pair in lengths]


@pytest.mark.parametrize("budget", [1, 12, 8192])
def test_logprobs_equal_transformers_whatever_the_budget(folder, sequences, budget):
    model = AutoModelForCausalLM.from_pretrained(folder)
    answers = ReferenceModel(folder, budget).logprobs(sequences, 0.7)
    for sequence, answer in zip(sequences, answers, strict=True):
        ids = torch.tensor([*sequence.prompt_ids, *sequence.token_ids])[None]
        with torch.no_grad():
            table = (model(ids).logits[0, len(sequence.prompt_ids) - 1 : -1] / 0.7).log_softmax(-1)
        expected = table.gather(1, ids[0, len(sequence.prompt_ids) :, None])[:, 0]
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", ["gpt2", "lfm2"])
def test_it_computes_families_of_transformers(model_type, tmp_path, sequences):
    model = make_transformers_model(model_type)
    reference = ReferenceModel(save(model, tmp_path), 12)
    assert reference.vocabulary == VOCABULARY
    with torch.no_grad():
        expected = logprobs_of(model, sequences, 0.7)
    np.testing.assert_allclose(np.concatenate(reference.logprobs(sequences, 0.7)), expected.numpy(), atol=1e-5)


def test_without_sequences_there_are_no_log_probabilities(folder):
    assert ReferenceModel(folder).logprobs([], 1.0) == []


def test_a_reference_in_bfloat16_has_the_bits_of_the_trainers_forward(folder, sequences):
    with torch.no_grad():
        expected, _ = packed_logprobs(load_causal_lm(folder, torch.bfloat16), sequences, 0.7)
    found = np.concatenate(ReferenceModel(folder, dtype=torch.bfloat16).logprobs(sequences, 0.7))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_version_with_adapters_has_the_bits_of_the_trainers_forward(folder, sequences, dtype):
    lora = LoraSpec(rank=2, target_modules=("q_proj", "down_proj"))
    trainers = load_causal_lm(folder)
    trained = add_adapters(trainers, lora, 0)
    for parameter in trained.values():
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    adapters = {name: parameter.detach().clone() for name, parameter in trained.items()}
    WorkingWeights(trainers, trained, dtype)
    with torch.no_grad():
        expected, _ = packed_logprobs(trainers, sequences, 0.7)
    found = np.concatenate(ReferenceModel(folder, dtype=dtype, version=VersionWeights(adapters, lora)).logprobs(sequences, 0.7))
    np.testing.assert_array_equal(found, expected.numpy())
    base = np.concatenate(ReferenceModel(folder, dtype=dtype).logprobs(sequences, 0.7))
    assert np.abs(found - base).max() > 0.1


@pytest.fixture
def scorer_folder(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return save(LlamaForSequenceClassification(LlamaConfig(**sizes, initializer_range=0.3, num_labels=1)), tmp_path)


@pytest.mark.parametrize("budget", [1, 12, 8192])
def test_scores_equal_transformers_whatever_the_budget(scorer_folder, sequences, budget):
    model = AutoModelForSequenceClassification.from_pretrained(scorer_folder)
    scores = ScoringModel(scorer_folder, budget).scores(sequences)
    with torch.no_grad():
        expected = [model(torch.tensor([*sequence.prompt_ids, *sequence.token_ids])[None]).logits[0].numpy() for sequence in sequences]
    assert [score.shape for score in scores] == [(1,)] * len(sequences)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reward_model_that_left_the_device_scores_with_the_same_bits(scorer_folder, sequences, dtype):
    scorer = ScoringModel(scorer_folder, dtype=dtype)
    held = [*scorer._model.parameters(), *scorer._model.buffers()]
    before, bits = scorer.scores(sequences), [tensor.clone() for tensor in held]
    assert scorer.leave_device(0.0)
    assert {tensor.untyped_storage().nbytes() for tensor in held} == {0}
    assert not scorer.leave_device(0.0), "it is away already"
    np.testing.assert_array_equal(scorer.scores(sequences), before)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(held, bits, strict=True))
    assert scorer.leave_device(0.0), "and it can leave again"


def test_a_reward_model_that_scored_a_moment_ago_stays(scorer_folder, sequences):
    scorer = ScoringModel(scorer_folder)
    scorer.scores(sequences)
    assert not scorer.leave_device(3600.0)
    assert all(parameter.untyped_storage().nbytes() for parameter in scorer._model.parameters())
