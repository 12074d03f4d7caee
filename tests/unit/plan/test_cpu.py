"""Plans of a CPU: beside the table that benchmarks/plans measured, and what `gradbus_kernels.cpu_speed` finds."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plan_lab import SIZES, model_size, run_spec
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from gradbus.plan import Workload, make_plan, memory, read_size
from gradbus.plan.embedded_cache import KEPT_BETWEEN_TURNS, before, in_one_piece, lanes, paged
from gradbus.plan.heap import unused_in_heap
from gradbus.plan.memory import Bill
from gradbus.plan.this_cpu import card_of_rates
from gradbus.plan.times import step_times
from gradbus_kernels.cpu_speed import medians
from gradbus_kernels.operators.batch_invariant.attention import pages
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch import config as engine_config
from gradbus_rollout.engines.torch.gpu.cache import room_for
from gradbus_rollout.settings import Settings
from gradbus_trainer.learners import torch as torch_learner

RATES = {
    "training": {"fp32": 8e10, "bf16": 16e10},
    "paired": {"fp32": 2e10, "bf16": 2e10},
    "read": {"fp32": 1e9, "bf16": 2e9},
    "decode": {"fp32": 4e10, "bf16": 8e10},
    "kept": {"fp32": 4e8, "bf16": 3e8},
    "attended": {"fp32": 2e9, "bf16": 4e9},
    "drawn": 2e8,
    "copied": 16e9,
    "operator": 1e-6,
    "widened": 0.0,
    "fresh": 1e9,
}
CARD = card_of_rates(RATES)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "plans"))

from rows import Row, planned  # noqa: E402
from version import write_version  # noqa: E402

TABLE = [Row(**row) for row in json.loads((BENCHMARKS / "results/plans.json").read_text())]
SMALL = {"vocab_size": 8192, "hidden_size": 192, "intermediate_size": 544, "num_hidden_layers": 8, "num_attention_heads": 6}


def bill(folder, **sections):
    return Bill.of(run_spec(**sections), model_size(folder, **SMALL, num_key_value_heads=3), Workload(64, 64), CARD.process)


def seconds(found, threads=1):
    return step_times(found, replace(CARD, cores=threads), 1, "together")


@pytest.mark.parametrize("length", [1, 32, 33, 128, 129, 256, 257, 512, 700, 4000])
def test_positions_of_caches_are_those_of_the_engine(length):
    spans = pages(length)
    assert paged(length) == spans[-1][1]
    assert before(paged(length)) == (spans[-2][1] if len(spans) > 1 else 0)
    assert in_one_piece(length) == room_for(length)


@pytest.mark.parametrize("slots", [4, 16, 64, 500])
def test_lanes_are_those_of_the_engine(slots):
    assert lanes(slots) == TorchEngineConfig(slots=slots).lanes


def test_the_plan_has_the_rules_of_the_engine_and_of_the_learner():
    assert memory._WIDENED == engine_config._WIDENED
    assert memory._PORTIONS == torch_learner._PORTIONS
    assert Settings.model_fields["kept_prefix_mib"].default << 20 == KEPT_BETWEEN_TURNS


@pytest.mark.parametrize(("groups", "kept"), [(1, 4 * 8 * 192 * (64 + 8 * 8 * 128)), (4096, 256 << 20)])
def test_what_is_kept_between_turns_is_billed_with_an_environment_alone(tmp_path, groups, kept):
    schedule = {"steps": 1, "groups_per_step": groups}
    of = {
        name: {part.name: part.bytes for part in bill(tmp_path, schedule=schedule, **sections).engine.parts}
        for name, sections in (("episodes", {"environment": {"agent": "pull"}}), ("single turns", {}))
    }
    assert "kept between turns" not in of["single turns"]
    assert of["episodes"]["kept between turns"] == kept


def test_tensors_with_pages_of_their_own_leave_nothing_in_the_heap():
    assert unused_in_heap([32 << 20, 64 << 20], adapters=False) == 0
    assert unused_in_heap([1 << 20] * 4, adapters=True) > unused_in_heap([1 << 20] * 4, adapters=False) > 0


def test_threads_share_a_step_and_have_micro_batches_and_gradients_of_their_own(tmp_path):
    one, two = (bill(tmp_path, trainer={"threads": threads}) for threads in (1, 2))
    assert two.packed == two.step_tokens // 8
    assert "gradients of each thread" in {part.name for part in two.trainer.parts}
    assert seconds(two, 2).train == pytest.approx(seconds(one, 2).train / 2)
    assert seconds(two, 1).train == pytest.approx(seconds(one, 1).train)


def test_all_phases_wait_for_the_cores(tmp_path):
    found = seconds(bill(tmp_path, schedule={"steps": 10, "max_staleness": 1}), 1)
    assert found.cores == pytest.approx(found.generate + found.train)


def test_frozen_weights_have_no_gradients_and_checkpoints_are_computed_twice(tmp_path):
    plain, lora, again = (bill(tmp_path, trainer=trainer) for trainer in ({}, {"lora": {}}, {"gradient_checkpointing": True}))
    assert seconds(lora).train < seconds(plain).train < seconds(again).train


def test_tensors_of_checkpointing_come_from_the_system(tmp_path):
    for checkpointing, ratio in ((True, 3.0), (False, 0.0)):
        found = bill(tmp_path, trainer={"gradient_checkpointing": checkpointing})
        slow, fast = (step_times(found, card_of_rates(RATES | {"fresh": rate}), 1, "together").train for rate in (1e9, 1e30))
        assert slow - fast == pytest.approx(ratio * 4 * found.step_tokens * found.size.kept_by_all / 1e9)


def test_one_machine_has_all_processes(tmp_path):
    found = make_plan(run_spec(), model_size(tmp_path, **SMALL), Workload(64, 64), CARD)
    (division,) = found.divisions
    assert division.placement == "together"
    assert [tenant.name for tenant in division.rooms[0].tenants] == ["trainer", "engine"]
    assert division.rooms[0].available == CARD.memory


def test_a_small_model_computes_in_float32(tmp_path):
    small = Bill.of(run_spec(trainer={"dtype": "bf16"}), model_size(tmp_path, vocab_size=64), Workload(64, 64), CARD.process)
    tiny = replace(small, size=replace(small.size, largest=1000))
    assert (small.engine_dtype, tiny.engine_dtype) == ("bf16", "fp32")


def test_a_cpu_without_instructions_for_bf16_decodes_in_float32(tmp_path):
    plain, widens = (card_of_rates(RATES | {"widened": widened}).process for widened in (0.0, 1.0))
    bf16, size = run_spec(trainer={"dtype": "bf16"}), model_size(tmp_path)
    assert [Bill.of(bf16, size, Workload(64, 64), process).engine_dtype for process in (plain, widens)] == ["bf16", "fp32"]
    invariant = run_spec(trainer={"dtype": "bf16"}, numerics="batch_invariant")
    assert Bill.of(invariant, size, Workload(64, 64), widens).engine_dtype == "bf16"


def test_an_engine_computes_in_the_dtype_of_the_trainer_or_of_what_a_server_loads(tmp_path):
    found = bill(tmp_path, weights={"dtype": "bf16"})
    assert found.engine_dtype == "fp32"
    assert bill(tmp_path, trainer={"dtype": "bf16", "lora": {}}).engine_dtype == "fp32"
    assert bill(tmp_path, weights={"dtype": "bf16"}, rollout={"engine": "sglang"}).engine_dtype == "bf16"


@pytest.mark.parametrize(
    ("stated", "width"), [({"dtype": "bfloat16"}, 2), ({"torch_dtype": "float16"}, 2), ({"dtype": "float32"}, 4), ({}, 4)]
)
def test_a_version_of_adapters_is_loaded_with_the_base_models_files(tmp_path, stated, width):
    fields = {name: value for name, value in (SIZES | SMALL).items() if "dtype" not in name}
    (tmp_path / "config.json").write_text(json.dumps(fields | stated | {"num_key_value_heads": 3}))
    size, few = read_size(tmp_path), {"slots": 4, "group_size": 4}
    sections = ({"dtype": "bf16", "lora": {}}, {"dtype": "bf16"})
    found, whole = (Bill.of(run_spec(trainer=one, rollout=few), size, Workload(64, 64), CARD.process) for one in sections)
    assert size.stored_width == width
    # More than the cache of so few slots before it grew.
    assert dict(found.engine.parts)["while it grows or loads a version"] == width * size.parameters + 2 * found.trained
    assert dict(whole.engine.parts)["while it grows or loads a version"] == 2 * size.parameters


def test_the_tables_text_counts_its_rows():
    text = (BENCHMARKS / "results/plans.md").read_text()
    counted, known = map(int, re.search(r"Measured: (\d+) of its (\d+) specs", text).groups())
    assert counted == len(TABLE) == sum(line.startswith("| ") for line in text.splitlines()) - 1
    assert counted <= known


@pytest.mark.parametrize(
    ("trainer", "dtype", "names"), [({"dtype": "bf16"}, torch.bfloat16, "model."), ({"lora": {}}, torch.float32, "base_model.model.")]
)
async def test_the_measured_engine_loads_what_a_trainer_publishes(tmp_path, write_tokenizer, trainer, dtype, names):
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    spec = run_spec(trainer=trainer)
    write_version(spec, tmp_path, tmp_path / "version")
    version = load_file(tmp_path / "version")
    assert {tensor.dtype for tensor in version.values()} == {dtype}
    assert all(name.startswith(names) for name in version)
    engine = TorchEngine.from_folder(tmp_path, TorchEngineConfig(slots=4, max_new_tokens=3), spec.trainer.lora)
    await engine.load([tmp_path / "version"], 0)
    await engine.close()
    assert engine.version == 0


def test_a_rate_is_the_median_of_rounds_so_one_slow_moment_moves_none():
    slow = RATES | {"training": {"fp32": 1.0, "bf16": 16e10}, "drawn": 1.0, "operator": 9.0}
    fast = RATES | {"training": {"fp32": 9e10, "bf16": 1.0}, "drawn": 3e8, "operator": 1e-9}
    assert medians([slow, RATES, fast]) == RATES


def missed():
    """What the plan misses of the table: memory by more than 15 %, seconds by more than 30 %."""
    for row in TABLE:
        for what, plan in planned(row).items():
            if plan != pytest.approx(row.measured[what], rel=0.15 if what in {"trainer", "engine"} else 0.3):
                yield row.name, what


def test_the_plan_is_what_a_cpu_measured():
    assert list(missed()) == []
