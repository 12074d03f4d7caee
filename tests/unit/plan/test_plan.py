"""Plans: memory beside what an H100 measured, times, what fits, how cards are divided, and what another setting changes."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from plan_lab import model_size, run_spec, stated

from gradbus.errors import SettingsError
from gradbus.plan import CARDS, Workload, card_of, make_plan
from gradbus.plan.cards import GIB
from gradbus.plan.memory import Bill
from gradbus.plan.times import speed_of_ranks, step_times, training_operations

MEASURED = json.loads((Path(__file__).parents[3] / "benchmarks/results/gpu_check_h100.json").read_text())
ONE_MICRO_BATCH = {"micro_batch_tokens": 1 << 15, "dtype": "bf16"}
"""The trainer of `make gpu-check`."""
LARGER = stated("qwen3-1.7b")
EXPERTS = LARGER | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "norm_topk_prob": True,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def measured(name):
    return next(check["value"] for part in MEASURED["parts"] for check in part["checks"] if check["name"] == name)


def checked(folder, model, **trainer):
    """The bill of the steps that `make gpu-check` makes: eight groups of eight, 512 tokens and 192."""
    spec = run_spec(trainer=ONE_MICRO_BATCH | trainer, rollout={"max_new_tokens": 192}, schedule={"steps": 10, "groups_per_step": 8})
    return Bill.of(spec, model_size(folder, **model), Workload(512, 192))


@pytest.mark.parametrize(
    ("name", "model", "trainer"),
    [
        ("0.5B", {}, {}),
        ("1.7B, activations computed again", LARGER, {"gradient_checkpointing": True}),
        ("two layers of 128 experts", EXPERTS, {}),
    ],
)
def test_the_trainers_memory_is_what_an_h100_measured(tmp_path, name, model, trainer):
    bill = checked(tmp_path, model, **trainer)
    allocated = bill.trainer.bytes - bill.process.context  # torch counts what it allocates
    assert allocated == pytest.approx(measured(f"{name}: peak memory"), rel=0.05)


@pytest.mark.parametrize(
    ("name", "model", "trainer", "tolerance"),
    [("0.5B", {}, {}, 0.1), ("1.7B, activations computed again", LARGER, {"gradient_checkpointing": True}, 0.1)],
)
def test_the_time_of_a_step_is_what_an_h100_measured(tmp_path, name, model, trainer, tolerance):
    bill = checked(tmp_path, model, **trainer)
    seconds = 16_384 / measured(f"{name}: packed tokens")
    assert step_times(bill, card_of("h100"), 1, "separate").train == pytest.approx(seconds, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "model", "slots"), [("0.5B, 64 slots", {}, 64), ("0.5B, 256 slots", {}, 256), ("1.7B, 64 slots", LARGER, 64)]
)
def test_the_time_of_decoding_is_what_an_h100_measured(tmp_path, name, model, slots):
    """Contexts of about 1,000 tokens, the prompt's share taken away."""
    spec = run_spec(trainer={"dtype": "bf16"}, rollout={"slots": slots, "group_size": 8, "max_new_tokens": 64}, schedule={"steps": 1})
    bill, other = (Bill.of(spec, model_size(tmp_path, **model), Workload(968, drawn)) for drawn in (64, 32))
    card = card_of("h100")
    seconds = step_times(bill, card, 1, "separate").generate - step_times(other, card, 1, "separate").generate
    assert spec.samples_per_step * 32 / seconds == pytest.approx(measured(f"{name}: decoding"), rel=0.15)


def test_operations_count_a_shared_prompt_once(tmp_path):
    bill = checked(tmp_path, {})
    alone = replace(bill, spec=run_spec(rollout={"group_size": 1, "max_new_tokens": 192}, schedule={"steps": 1, "groups_per_step": 64}))
    prompts = 6.0 * bill.size.active * 512 * (64 - 8)
    assert training_operations(alone).layers - training_operations(bill).layers >= prompts


def test_parameters_and_caches_are_those_of_the_model(tmp_path):
    size = model_size(tmp_path)
    assert size.parameters == 494_032_768
    assert size.cached == 24 * 2 * 2 * 64
    assert size.active == size.parameters - size.embedding


def test_a_token_goes_through_its_own_experts_alone(tmp_path):
    size = model_size(tmp_path, **EXPERTS)
    assert size.parameters - size.active - 2 * size.embedding * 0.5 == 2 * 3 * 2048 * 768 * (128 - 8)


def test_adapters_alone_are_trained(tmp_path):
    bill = checked(tmp_path, {}, lora={"rank": 8, "target_modules": ["q_proj", "down_proj"]})
    assert bill.trained == 24 * 8 * ((896 + 896) + (4864 + 896))
    assert {part.name for part in bill.trainer.parts} >= {"weights, bf16", "moments, float32"}


@pytest.mark.parametrize(("stage", "sharded"), [(0, 0), (1, 8 + 4), (2, 8 + 4 + 4), (3, 8 + 4 + 4 + 2)])
def test_a_stage_of_zero_shards_what_it_says(tmp_path, stage, sharded):
    trainer = {"backend": "deepspeed", "deepspeed": {"zero_stage": stage}, "micro_batch_tokens": 1024}
    bill = checked(tmp_path, {}, **trainer)
    saved = bill.trainer.bytes - replace(bill, ranks=2).trainer.bytes
    assert saved == pytest.approx(sharded * bill.size.parameters / 2, abs=10)


def test_offloaded_state_is_on_no_card(tmp_path):
    trainer = {"backend": "deepspeed", "deepspeed": {"zero_stage": 3, "offload": "all"}}
    names = {part.name for part in checked(tmp_path, {}, **trainer).trainer.parts}
    assert not names & {"weights, bf16", "weights, float32", "moments, float32"}


def test_gradients_and_activations_are_there_at_once_only_with_several_micro_batches(tmp_path):
    one = checked(tmp_path, {})
    several = replace(one, spec=run_spec(trainer={"dtype": "bf16", "micro_batch_tokens": 8192}, schedule={"steps": 1}))
    assert "gradients, float32" not in {part.name for part in one.trainer.parts}
    assert {"gradients, float32", "activations"} <= {part.name for part in several.trainer.parts}


def test_a_full_critic_and_a_reference_are_billed(tmp_path):
    size = model_size(tmp_path)
    assert Bill.of(run_spec(), size, Workload(256, 64)).reference is None
    found = Bill.of(run_spec(algorithm={"kl": 0.1}), size, Workload(256, 64)).reference
    assert found is not None
    assert found.bytes > 4 * size.parameters
    assert Bill.of(run_spec(algorithm={"kl": 0.1}, trainer={"lora": {}}), size, Workload(256, 64)).reference is None


def critic_bytes(size, **sections):
    bill = Bill.of(run_spec(algorithm={"name": "ppo"}, **sections), size, Workload(256, 64))
    return sum(part.bytes for part in bill.trainer.parts if part.name.startswith("critic"))


@pytest.mark.parametrize(("tied", "untrained"), [(True, 0), (False, 1)])
def test_a_critic_of_its_own_trains_a_tied_embedding_and_no_other_head(tmp_path, tied, untrained):
    size = model_size(tmp_path, tie_word_embeddings=tied)
    assert critic_bytes(size) == 16 * size.parameters - 12 * untrained * size.embedding


def test_adapters_of_a_critic_stand_beside_a_base_model_that_frozen_float32_shares(tmp_path):
    size, lora = model_size(tmp_path), {"kind": "lora", "rank": 4}
    alone, shared, rounded = (
        critic_bytes(size, trainer={"critic": lora} | more) for more in ({}, {"lora": {}}, {"lora": {}, "dtype": "bf16"})
    )
    assert alone == rounded == shared + 4 * size.parameters
    assert 0 < shared < size.parameters
    assert critic_bytes(size, trainer={"critic": {"kind": "head"}}) == 0


def test_one_card_is_shared_or_used_in_turns(tmp_path):
    found = make_plan(run_spec(trainer={"dtype": "bf16"}), model_size(tmp_path), Workload(256, 64), card_of("h100"))
    assert [division.placement for division in found.divisions] == ["shared", "timed"]
    assert all(division.fits for division in found.divisions)
    assert found.divisions[1].times.switch > 0.0


def test_turns_need_a_schedule_that_waits(tmp_path):
    free = run_spec(schedule={"steps": 10, "mode": "free", "max_staleness": 4})
    found = make_plan(free, model_size(tmp_path), Workload(256, 64), card_of("h100"))
    assert [division.placement for division in found.divisions] == ["shared"]


def test_cards_go_where_the_time_is(tmp_path):
    spec = run_spec(rollout={"max_new_tokens": 4096}, trainer={"backend": "deepspeed", "dtype": "bf16"})
    best = make_plan(spec, model_size(tmp_path, **LARGER), Workload(256, 2048), card_of("h100"), 8).divisions[0]
    assert best.placement == "separate"
    assert best.trainers + best.rollouts == 8
    times = [division.times.step for division in make_plan(spec, model_size(tmp_path), Workload(256, 2048), card_of("h100"), 8).divisions]
    assert times == sorted(times)


def test_a_plan_of_many_cards_has_the_best_few_divisions_of_each_placement(tmp_path):
    spec = run_spec(rollout={"max_new_tokens": 4096}, trainer={"backend": "deepspeed", "dtype": "bf16"})
    size, workload = model_size(tmp_path, **LARGER), Workload(256, 2048)
    found = make_plan(spec, size, workload, card_of("h100"), 64)
    assert Counter(division.placement for division in found.divisions) == {"separate": 3, "shared": 1, "timed": 1}
    best, *others = (division for division in found.divisions if division.placement == "separate")
    assert all(abs(division.trainers - best.trainers) <= 2 for division in others), "those that are nearest to the best"


def test_a_plain_trainer_has_one_card(tmp_path):
    found = make_plan(run_spec(trainer={"dtype": "bf16"}), model_size(tmp_path), Workload(256, 64), card_of("h100"), 8)
    assert {division.trainers for division in found.divisions} == {1}
    assert next(division.rollouts for division in found.divisions if division.placement == "separate") == 7


@pytest.mark.parametrize("algorithm", [{"kl": 0.1}, {"name": "score_centering"}])
def test_a_reference_is_beside_the_trainer(tmp_path, algorithm):
    spec = run_spec(algorithm=algorithm, trainer={"dtype": "bf16"})
    found = make_plan(spec, model_size(tmp_path), Workload(256, 64), card_of("h100"))
    shared = next(division for division in found.divisions if division.placement == "shared")
    assert [tenant.name for tenant in shared.rooms[0].tenants] == ["trainer", "reference"]
    assert shared.rooms[0].needed == found.bill.trainer.bytes + found.bill.reference.bytes


def test_a_step_of_many_samples_reads_nearly_all_experts(tmp_path):
    size = model_size(tmp_path, **EXPERTS)
    assert size.read_by(1) == pytest.approx(size.active)
    assert size.read_by(64) == pytest.approx(size.active + size.experts * ((8 / 128 * -1) + 1 - (120 / 128) ** 64))
    assert model_size(tmp_path).read_by(64) == model_size(tmp_path).active


def test_more_cards_do_not_make_a_response_shorter(tmp_path):
    spec = run_spec(rollout={"slots": 256, "max_new_tokens": 512}, trainer={"dtype": "bf16"})
    bill, card = Bill.of(spec, model_size(tmp_path, **LARGER), Workload(256, 512)), card_of("h100")
    seconds = [step_times(bill, card, rollouts, "separate").generate for rollouts in (1, 8, 16, 256)]
    assert seconds == sorted(seconds, reverse=True)
    weights = 2 * (bill.size.active + bill.size.embedding) / (0.88 * card.bandwidth)
    assert seconds[-1] > 512 * (weights + 42e-6 * bill.size.layers)


def test_a_run_on_given_responses_has_no_engine(tmp_path):
    spec = run_spec(kind="sft", reward={}, trainer={"dtype": "bf16"})
    found = make_plan(spec, model_size(tmp_path), Workload(256, 64), card_of("rtx4090"))
    assert found.bill.engine is None
    assert [(division.trainers, division.rollouts) for division in found.divisions] == [(1, 0)]
    assert found.divisions[0].times.generate == 0.0


@pytest.mark.parametrize(("kind", "responses"), [("sft", 1), ("dpo", 2), ("kto", 2), ("reward_model", 2)])
def test_a_row_of_given_responses_is_a_group(tmp_path, kind, responses):
    spec = run_spec(kind=kind, reward={}, schedule={"steps": 10, "groups_per_step": 4})
    bill = Bill.of(spec, model_size(tmp_path), Workload.of(spec, 100, 900))
    assert bill.step_tokens == 4 * (100 + responses * 900)
    assert (bill.reference is not None) == (kind in {"dpo", "kto"})


def test_a_reward_model_has_no_head_to_speak_of(tmp_path):
    bills = [Bill.of(run_spec(kind=kind, reward={}), model_size(tmp_path), Workload(256, 256)) for kind in ("dpo", "reward_model")]
    assert sum(training_operations(bills[1])) < sum(training_operations(bills[0]))
    assert bills[1].trainer.bytes < bills[0].trainer.bytes


def test_what_does_not_fit_says_which_setting_helps(tmp_path):
    found = make_plan(run_spec(), model_size(tmp_path, **LARGER), Workload(256, 64), card_of("l4"))
    assert not any(division.fits for division in found.divisions)
    settings = {change.setting: change.tenant for change in found.changes}
    assert {'trainer.dtype = "bf16"', "trainer.gradient_checkpointing = true", "[trainer.lora]", "rollout.slots = 32"} <= settings.keys()
    assert settings["rollout.slots = 32"].bytes < found.bill.engine.bytes
    assert settings["[trainer.lora]"].bytes < found.bill.trainer.bytes


PHI3 = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0}


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({}, "[trainer.lora]"),
        (PHI3, 'trainer.lora.target_modules = ["o_proj", "qkv_proj", "gate_up_proj", "down_proj"]'),
        (EXPERTS, 'trainer.lora.target_modules = ["q_proj", "k_proj", "v_proj", "o_proj"]'),
    ],
)
def test_adapters_are_offered_beside_the_layers_of_the_family(tmp_path, model, named):
    found = changes(run_spec(), model_size(tmp_path, **model))
    assert [setting for setting in found if "lora" in setting] == [named]


def test_a_change_that_would_be_refused_is_not_offered(tmp_path):
    """A run with adapters has them already; a reward model and runs with equal bits take neither them nor bfloat16."""
    size = model_size(tmp_path)
    assert not any("lora" in setting for setting in changes(run_spec(trainer={"lora": {"rank": 8}}), size))
    for spec in (run_spec(kind="reward_model", reward={}), run_spec(numerics="batch_invariant")):
        assert not {"[trainer.lora]", 'trainer.dtype = "bf16"'} & changes(spec, size)
        assert "trainer.gradient_checkpointing = true" in changes(spec, size)


def changes(spec, size):
    return {change.setting for change in make_plan(spec, size, Workload.of(spec), card_of("h100")).changes}


def test_lengths_default_to_short_prompts_and_half_of_the_longest_response():
    assert Workload.of(run_spec(rollout={"max_new_tokens": 1000})) == Workload(256, 500)
    assert Workload.of(run_spec(rollout={"max_new_tokens": 1000, "max_prompt_tokens": 64})) == Workload(64, 500)
    assert Workload.of(run_spec(rollout={"max_new_tokens": 1000}), 10, 5000) == Workload(10, 1000)
    assert Workload.of(run_spec(kind="sft", reward={})) == Workload(256, 256)


def test_more_ranks_are_faster_but_not_as_many_times():
    assert [round(speed_of_ranks(ranks), 2) for ranks in (1, 2, 3, 4, 8)] == [1.0, 1.8, 2.54, 3.24, 5.83]


def test_an_unknown_card_is_named_with_the_known_ones():
    with pytest.raises(SettingsError, match="did you mean h100"):
        card_of("h1000")
    assert CARDS["h100"].memory == pytest.approx(79.2 * GIB, rel=1e-3)
    assert card_of("H200").name == "h200"
