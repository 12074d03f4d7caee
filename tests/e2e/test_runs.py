"""Runs with other model families, tokenizers, data, graders and settings than the demo's."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradbus.client import document
from gradbus.spec import PRESETS, AlgorithmSpec, CriticSpec
from gradbus.spec.presets import CRITICS

STRING_CHECK = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}", "operation": "eq"}
SIMILARITY = {"type": "text_similarity", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
LETTERS = {"type": "python", "source": "def grade(sample, item):\n    return {'reward': len(sample['output_text']) / 32, 'letters': 1.0}\n"}
MULTI = {"type": "multi", "graders": {"alike": SIMILARITY, "letters": LETTERS}, "calculate_output": "0.5 * alike + 0.5 * letters"}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_family_with_a_byte_level_tokenizer_trains(lab, spec, models, family):
    run = lab.train(spec(model={"path": str(models / family)}))
    assert (run["progress"]["step"], run["progress"]["checkpoint_step"]) == (3, 3)
    assert lab.learned(run)
    assert document(lab.client.versions_page(run["id"]))["data"][-1]["version"] == 3
    assert run["progress"]["accuracy"] is None


def test_chat_messages_go_through_the_template(lab, spec, rows):
    train = rows({"prompt": [{"role": "user", "content": word}]} for word in ("sun", "rain"))
    run = lab.train(spec(data={"train": train}))
    assert {sample["prompt"] for sample in lab.samples(run["id"])} == {"[user]sun\n[assistant]", "[user]rain\n[assistant]"}


@pytest.mark.parametrize(
    ("grader", "components"), [(STRING_CHECK, set()), (SIMILARITY, set()), (LETTERS, {"letters"}), (MULTI, {"alike", "letters"})]
)
def test_a_grader_judges_every_sample(lab, spec, grader, components):
    samples = lab.samples(lab.train(spec(reward={"grader": grader}))["id"])
    assert len(samples) == 3 * 4 * 4
    assert all(sample["reward_status"] == "ok" and set(sample["components"]) >= components for sample in samples)


def test_a_multi_graders_formula_joins_its_parts(lab, spec):
    for sample in lab.samples(lab.train(spec(reward={"grader": MULTI}))["id"]):
        parts = sample["components"]
        assert sample["reward"] == pytest.approx(0.5 * parts["alike"] + 0.5 * parts["letters"])


def test_a_step_without_weight_keeps_the_policy(lab, spec):
    never = STRING_CHECK | {"reference": "no such answer"}
    run = lab.train(spec(reward={"grader": never}))
    versions = document(lab.client.versions_page(run["id"]))["data"]
    assert not lab.learned(run)
    assert versions[-1]["noop"]
    assert len({version["digest"] for version in versions}) == 1
    assert run["progress"]["filtered"] == 12


@pytest.mark.parametrize(
    "settings",
    [
        {"importance": "decoupled"},
        {"aggregate": "sequence"},
        {"normalize_std": False, "entropy": 0.01},
        {"filter": "none"},
        {"sequence_mask": [0.5, 2.0], "off_policy_mask": 1.0, "dual_clip": 3.0},
        {"kl": 0.1, "kl_estimator": "unbiased"},
    ],
    ids=str,
)
def test_a_variant_of_the_algorithm_trains(lab, spec, settings):
    assert lab.learned(lab.train(spec(algorithm=settings)))


OFTEN = {"gspo", "gmpo", "cispo", "sapo", "vespo", "dppo", "gdpo", "rloo"}
"""Presets whose parts are in no other run; the others are trained by `make test-faults`."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow) for name in sorted(set(PRESETS) - {"grpo", "opd", *CRITICS})],
)
def test_a_preset_trains_and_is_stored_with_the_value_of_every_field(lab, spec, name):
    run = lab.train(spec(algorithm={"name": name}, reward={"grader": MULTI}))
    assert lab.learned(run)
    assert run["spec"]["algorithm"] == json.loads(AlgorithmSpec(name=name).model_dump_json())


def test_the_greedy_sample_of_a_prompt_is_the_baseline_of_the_others(lab, spec):
    run = lab.train(spec(algorithm={"name": "remax"}, rollout={"group_size": 3}, reward={"grader": MULTI}))
    assert lab.learned(run)
    groups: dict[int, dict[int, dict]] = {}
    for sample in lab.samples(run["id"]):
        groups.setdefault(sample["index"], {})[int(sample["id"].rpartition(".")[2])] = sample
    for group in groups.values():
        assert {n: sample["label"] for n, sample in group.items()} == {0: "", 1: "", 2: "greedy"}
        assert group[2]["advantage"] is None
        for n in range(2):
            assert group[n]["advantage"] == pytest.approx(group[n]["reward"] - group[2]["reward"])
    for row in {group[2]["row_index"] for group in groups.values()}:
        texts = {group[2]["text"] for group in groups.values() if group[2]["row_index"] == row and group[2]["dispatched_version"] == 0}
        assert len(texts) <= 1, "whatever the seed"


@pytest.mark.parametrize("name", ["vapo", "sao"])
def test_a_preset_brings_its_critic(lab, spec, name):
    critic = {"warmup_steps": 1, "learning_rate": 1e-3}
    run = lab.train(spec(algorithm={"name": name}, trainer={"critic": critic}, reward={"grader": MULTI}))
    assert [step["noop"] for step in lab.events(run["id"], "metrics")] == [True, False, False]
    assert run["spec"]["trainer"]["critic"] == json.loads(CriticSpec(**CRITICS[name] | critic).model_dump_json())
    if name == "vapo":
        assert [step["nll"] > 0.0 for step in lab.events(run["id"], "metrics")] == [False, True, True]


@pytest.mark.parametrize("kind", ["full", "head"])
def test_ppo_trains_with_one_sample_a_prompt_after_its_critics_warm_up(lab, spec, kind):
    critic = {"kind": kind, "warmup_steps": 2, "updates": 2, "learning_rate": 1e-3}
    run = lab.train(spec(algorithm={"name": "ppo"}, trainer={"critic": critic}, rollout={"group_size": 1}, reward={"grader": MULTI}))
    steps = lab.events(run["id"], "metrics")
    assert [step["noop"] for step in steps] == [True, True, False]
    assert all(step["value_loss"] > 0.0 and step["critic_grad_norm"] > 0.0 for step in steps)
    assert [version["noop"] for version in document(lab.client.versions_page(run["id"]))["data"]][-2:] == [True, False]
    samples = lab.samples(run["id"])
    assert {sample["id"].rpartition(".")[2] for sample in samples} == {"0"}
    assert {sample["advantage"] for sample in samples} == {None}, "it is by token"


def test_several_updates_of_a_step_make_one_version_and_the_same_in_every_run(lab, spec):
    trainer = {"learning_rate": 0.01, "inner": {"epochs": 2, "minibatches": 2}}
    runs = [lab.train(spec(trainer=trainer, algorithm={"importance": "decoupled", "filter": "none"})) for _ in range(2)]
    assert all(lab.learned(run) for run in runs)
    for run in runs:
        steps = lab.events(run["id"], "metrics")
        assert [step["version"] for step in steps] == list(range(1, len(steps) + 1))
        assert {step["updates"] for step in steps} == {4}
    digests = [[version["digest"] for version in document(lab.client.versions_page(run["id"]))["data"]] for run in runs]
    assert digests[0] == digests[1]


def test_truncated_samples_can_be_left_out(lab, spec):
    run = lab.train(spec(algorithm={"truncated": "mask"}, rollout={"max_new_tokens": 2, "stop_token_ids": list(range(150))}))
    cut = sum(sample["finish_reason"] == "length" for sample in lab.samples(run["id"]) if sample["verdict"] == "train")
    assert sum(step["masked"] for step in lab.events(run["id"], "metrics")) == cut > 0


def test_the_filter_can_be_switched_off(lab, spec):
    never = STRING_CHECK | {"reference": "no such answer"}
    run = lab.train(spec(reward={"grader": never}, algorithm={"filter": "none"}))
    assert {sample["verdict"] for sample in lab.samples(run["id"])} == {"train"}


def test_a_dataset_smaller_than_a_step_goes_round_in_epochs(lab, spec, rows):
    train = rows({"prompt": word, "answer": word} for word in ("sun", "moon"))
    samples = lab.samples(lab.train(spec(data={"train": train}))["id"])
    groups = {sample["index"]: sample["row_index"] for sample in samples}
    assert sorted(groups) == list(range(12))
    assert all({groups[2 * epoch], groups[2 * epoch + 1]} == {0, 1} for epoch in range(6))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_fixed_lag_step_trains_one_version_alone(lab, spec, lag):
    run = lab.train(spec(schedule={"max_staleness": lag, "steps": 5}))
    drawn = {(sample["step"], span["version"]) for sample in lab.samples(run["id"]) for span in sample["versions"]}
    assert drawn == {(step, max(0, step - lag)) for step in range(5)}


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_free_run_trains_every_step_and_nothing_too_stale(lab, spec, lag):
    free = {"mode": "free", "max_staleness": lag, "steps": 8}
    run = lab.train(spec(schedule=free, rollout={"max_new_tokens": 40}))
    metrics = lab.events(run["id"], "metrics")
    assert [step["step"] for step in metrics] == list(range(8))
    assert max(step["staleness_max"] for step in metrics) <= lag
    trained = [sample for sample in lab.samples(run["id"]) if sample["verdict"] == "train"]
    assert len(trained) == 8 * 4 * 4


def test_a_kl_penalty_brings_the_reference_service_and_no_penalty_none(lab, spec, gradbus):
    run = lab.train(spec(algorithm={"kl": 0.1}, trainer={"learning_rate": 0.01}))
    kl = [step["kl"] for step in lab.events(run["id"], "metrics")]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[-1] > 0.0
    lab.gone("reference")
    lab.train(spec())
    assert "reference" not in gradbus("status").stdout


@pytest.mark.parametrize("algorithm", [{"name": "rloo"}, {"name": "ppo", "kl": 0.05}], ids=["rloo", "ppo"])
def test_a_kl_in_the_reward_is_that_of_the_policy_that_sampled(lab, spec, algorithm):
    trainer = {"learning_rate": 0.01} | ({"critic": {"kind": "head"}} if algorithm["name"] == "ppo" else {})
    run = lab.train(spec(algorithm=algorithm, trainer=trainer))
    kl = [step["kl"] for step in lab.events(run["id"], "metrics")]
    assert kl[0] == pytest.approx(0.0, abs=1e-5), "versions 0 and 1 are sampled by the base model"
    assert abs(kl[-1]) > 1e-5, "a mean of differences, which may be negative"
    trained = [sample for sample in lab.samples(run["id"]) if sample["verdict"] == "train"]
    assert all((sample["advantage"] is None) == (algorithm["name"] == "ppo") for sample in trained)


def test_adapters_learn_under_a_penalty_without_a_reference_service_and_are_exported_merged(
    lab, spec, models, tokenizer, gradbus, tmp_path
):
    before = AutoModelForCausalLM.from_pretrained(models / "llama")
    for tensor in before.parameters():
        tensor.data *= 10.0 if tensor.dim() > 1 else 1.0  # the original values are too small for adapters to change the logits much
    for part in (before, tokenizer):
        part.save_pretrained(tmp_path / "base")
    adapters = {"rank": 4, "alpha": 8.0, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    trainer = {"learning_rate": 0.02, "lora": adapters}
    long = spec(
        model={"path": str(tmp_path / "base")},
        algorithm={"kl": 0.01},
        schedule={"groups_per_step": 8, "steps": 30},
        trainer=trainer,
        reward={"grader": LETTERS},
    )
    lab.gone("reference")
    run_id = lab.submit(long)
    lab.until(run_id, lambda run: run["progress"]["step"] > 2)
    assert "reference" not in gradbus("status").stdout
    run = lab.ends(run_id)
    steps = lab.events(run_id, "metrics")
    assert lab.learned(run)
    assert (steps[0]["kl"], steps[-1]["kl"] > 1e-3) == (pytest.approx(0.0, abs=1e-6), True)
    rewards = [step["reward"] for step in steps]
    assert sum(rewards[-4:]) > 1.3 * sum(rewards[:4])
    assert lab.events(run_id, "learner") == [{"trained_parameters": 2 * 4 * (32 + 32 + 32 + 16 + 64 + 32)}]
    assert gradbus("export", run_id, tmp_path / "out").returncode == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    after = dict(merged.named_parameters())
    moved = {name.split(".")[-2] for name, tensor in before.named_parameters() if not tensor.equal(after[name])}
    assert moved == set(adapters["target_modules"])
    assert gradbus("export", run_id, tmp_path / "peft", "--adapters").returncode == 0
    ids = torch.arange(20)[None]
    base = before(ids).logits
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "peft")
    torch.testing.assert_close(beside(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-4)
    assert (merged(ids).logits - base).abs().max() > 0.1
    assert document(lab.client.versions_page(run_id))["data"][-1]["bytes"] < (tmp_path / "out" / "model.safetensors").stat().st_size / 2


def test_adapters_end_in_the_same_bits_over_every_transport(lab, spec):
    trainer = {"learning_rate": 0.02, "lora": {"rank": 4}}
    runs = [lab.train(spec(trainer=trainer, weights={"transport": name})) for name in ("store", "delta", "broadcast")]
    assert len({lab.final_digest(run) for run in runs}) == 1
    assert len({version["digest"] for version in document(lab.client.versions_page(runs[0]["id"]))["data"]}) > 1


def test_an_export_loads_in_transformers_and_generates(lab, spec, models, gradbus, tmp_path):
    run = lab.train(spec(model={"path": str(models / "qwen2")}))
    exported = gradbus("export", run["id"], tmp_path / "out")
    assert (exported.returncode, "final version 3" in exported.stdout) == (0, True), exported.stderr
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    before = AutoModelForCausalLM.from_pretrained(models / "qwen2")
    assert not model.lm_head.weight.equal(before.lm_head.weight)
    answer = model.generate(**tokenizer("sun and", return_tensors="pt", return_token_type_ids=False), max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > len(tokenizer("sun and")["input_ids"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False


def test_held_out_rows_are_evaluated_before_between_and_after(lab, spec, rows):
    held_out = rows({"prompt": f"{word} and", "answer": word} for word in ("sun", "moon", "snow"))
    run = lab.train(spec(data={"eval": held_out}, evaluation={"every": 2, "samples": 2}))
    found = {result["version"]: result["samples"] for result in lab.events(run["id"], "evaluation")}
    assert found == {0: 2, 2: 2, 3: 2}
    assert run["progress"]["accuracy"] is not None
