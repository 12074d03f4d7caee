"""The hand-written forward against transformers'."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from gradbus_rollout.engines.torch import cache
from gradbus_rollout.engines.torch.cache import pages
from gradbus_rollout.engines.torch.prefill import Prefill


@torch.inference_mode()
def test_decoded_logits_equal_transformers(tmp_path, hf_model, decoder):
    model = decoder(tmp_path / "model")
    ids = torch.randint(0, 48, (4, 70))  # three pages
    expected = hf_model.double()(ids).logits.float()
    kept = model.new_cache(4)
    for position in range(ids.shape[1]):
        hidden = model.forward(ids[:, position : position + 1], torch.full((4, 1), position), kept)
        torch.testing.assert_close(model.logits(hidden), expected[:, position], atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_prefilled_prompt_continues_as_transformers_does(tmp_path, hf_model, decoder):
    model = decoder(tmp_path / "model")
    prompts = [torch.randint(0, 48, (length,)) for length in (1, 2, 8, 9, 18, 300)]
    prefill = Prefill(model, 7, "cpu")
    logits = prefill.run([tuple(prompt.tolist()) for prompt in prompts])
    following = logits.argmax(-1, keepdim=True)
    positions = torch.tensor([[len(prompt)] for prompt in prompts] + [[0]])
    next_logits = model.logits(model.forward(following, positions, prefill.cache))
    for row, prompt in enumerate(prompts):
        expected = hf_model(torch.cat((prompt, following[row]))[None]).logits[0, -2:]
        torch.testing.assert_close(torch.stack((logits[row], next_logits[row])), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 32, 33, 64, 65, 129, 257, 700])
def test_pages_cover_a_length_and_are_a_prefix_of_every_longer_ones(length):
    spans = list(pages(length))
    assert spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert spans[-1][0] < length <= spans[-1][1]
    assert list(pages(length + 1000))[: len(spans)] == spans


@torch.inference_mode()
def test_more_pages_than_a_row_needs_do_not_change_its_bits(tmp_path, hf_model, decoder):
    model = decoder(tmp_path / "model")
    ids, positions = torch.randint(0, 48, (8, 1)), torch.arange(8)[:, None]

    def logits(longest_neighbour: int):
        used = model.new_cache(8)
        used.reserve(longest_neighbour + 1)
        used._storage.normal_(generator=torch.Generator().manual_seed(longest_neighbour))  # junk of another life
        used._of_page((0, 32))[..., :8, :] = torch.linspace(-1, 1, 8)[:, None]
        at = positions.clone()
        at[7] = longest_neighbour
        return model.logits(model.forward(ids, at, used))[:7]

    alone = logits(7)
    for longest in (31, 40, 100, 600):
        assert torch.equal(logits(longest), alone)


@torch.inference_mode()
def test_prompts_copied_in_parts_arrive_as_those_copied_at_once(model_folder, decoder, monkeypatch):
    model = decoder(model_folder)
    prefill = Prefill(model, 4, "cpu")
    prefill.run([tuple(torch.randint(0, 48, (40,)).tolist()) for _ in range(4)])
    lanes, rows = torch.tensor([2, 0, 2, 3, 1]), torch.tensor([6, 1, 0, 3, 5])
    copies = []
    for elements in (1 << 24, 1):
        monkeypatch.setattr(cache, "_COPIED_ELEMENTS", elements)
        copies.append(model.new_cache(8))
        copies[-1].copy_rows(rows, prefill.cache, lanes, 40)
    assert copies[0]._storage.any()
    assert torch.equal(copies[0]._storage, copies[1]._storage)


@torch.inference_mode()
def test_a_model_that_drops_its_buffers_holds_no_rotary_tables_either_and_computes_the_same(model_folder, decoder):
    model = decoder(model_folder)
    ids, positions, kept = torch.randint(0, 48, (2, 9)), torch.arange(9).repeat(2, 1), model.new_cache(2)
    before = model.forward(ids, positions, kept)
    model.drop_buffers()
    assert not model._attention._buffers
    assert [table.numel() for table in model._attention._tables] == [0]
    assert torch.equal(model.forward(ids, positions, kept), before)
