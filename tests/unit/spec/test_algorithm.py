"""Presets, what a field beside them changes, and the combinations that are refused."""

import json
from typing import get_args

import pytest

from gradbus.algorithms import ESTIMATORS, need_faults
from gradbus.errors import SpecError
from gradbus.spec import PRESETS, AlgorithmSpec, CriticSpec, TrainerSpec, parse_spec
from gradbus.spec.presets import CRITICS, PresetName

BODY = {
    "name": "sums",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl"},
    "reward": {"service": "grpc://scorer:50051"},
    "schedule": {"steps": 4},
}


def body(**algorithm):
    """A spec with this algorithm; a critic that it brings has no warm-up, which would be longer than the run."""
    return BODY | {"algorithm": algorithm} | ({"trainer": {"critic": {"warmup_steps": 0}}} if algorithm.get("name") in CRITICS else {})


def faults(**algorithm):
    with pytest.raises(SpecError) as refused:
        parse_spec(body(**algorithm))
    return {fault.path: str(fault) for fault in refused.value.faults}


def test_every_name_has_a_preset():
    assert set(get_args(PresetName)) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_spec_without_faults_and_is_stored_with_every_field(name):
    needs = {"teacher": {"path": "teacher"}, "reward": {}} if name == "opd" else {}
    spec = parse_spec(body(name=name) | needs)
    stored = json.loads(spec.model_dump_json())
    assert set(stored["algorithm"]) == set(AlgorithmSpec.model_fields)
    assert parse_spec(stored) == spec


@pytest.mark.parametrize("name", PRESETS)
def test_a_stored_spec_does_not_change_with_its_preset(name, monkeypatch):
    stored = json.loads(AlgorithmSpec(name=name).model_dump_json())
    before = AlgorithmSpec.model_validate(stored)
    changed = {"aggregate": "sequence", "normalize_std": False, "kl": 0.5, "clip": (0.4, 0.4), "overlong_penalty": 3.0}
    monkeypatch.setitem(PRESETS, name, changed)
    assert AlgorithmSpec.model_validate(stored) == before
    assert AlgorithmSpec(name=name) != before


def test_the_numbers_of_the_papers():
    assert AlgorithmSpec().clip == (0.2, 0.2)
    assert (AlgorithmSpec(name="dapo").clip, AlgorithmSpec(name="dapo").overlong_penalty) == ((0.2, 0.28), 1.0)
    assert (AlgorithmSpec(name="gspo").clip, AlgorithmSpec(name="gspo").ratio) == ((3e-4, 4e-4), "sequence")
    assert AlgorithmSpec(name="sapo").soft_temperatures == (1.0, 1.05)
    assert (AlgorithmSpec(name="dro").drift, AlgorithmSpec(name="dro").importance) == (0.025, "none")
    assert (AlgorithmSpec(name="vespo").gamma_curves, AlgorithmSpec(name="vespo").ratio) == (((2.0, 3.0), (3.0, 2.0)), "product")
    for name, kl in (("rloo", 0.05), ("reinforce_pp", 0.01), ("ppo", 0.0)):
        assert (AlgorithmSpec(name=name).kl, AlgorithmSpec(name=name).kl_place) == (kl, "reward")
    assert (AlgorithmSpec(name="dppo").drift, AlgorithmSpec().drift) == (1e-3, 0.0)
    assert (AlgorithmSpec(name="m2po").second_moment, AlgorithmSpec(name="m2po").trust_region) == (0.04, "none")
    assert (AlgorithmSpec(name="cispo").clip, AlgorithmSpec(name="icepop").clip) == ((1.0, 4.0), (0.5, 4.0))


def test_a_field_replaces_that_of_the_preset_and_no_other():
    changed = AlgorithmSpec(name="dapo", clip=(0.1, 0.5))
    assert changed == AlgorithmSpec(name="dapo").model_copy(update={"clip": (0.1, 0.5)})


def test_another_trust_region_has_bounds_of_its_own():
    assert AlgorithmSpec(name="dapo", trust_region="band").clip == (0.5, 4.0)
    soft = AlgorithmSpec(name="gspo", ratio="token", trust_region="soft")
    assert (soft.clip, soft.soft_temperatures) == (None, (1.0, 1.05))
    assert AlgorithmSpec(name="sapo", trust_region="clip") == AlgorithmSpec(name="grpo", aggregate="sequence").model_copy(
        update={"name": "sapo"}
    )


@pytest.mark.parametrize(
    ("algorithm", "path"),
    [
        ({"name": "grop"}, "algorithm.name"),
        ({"name": 3}, "algorithm.name"),
        ({"trust_region": ["clip"]}, "algorithm.trust_region"),
        ({"advantage": "td"}, "algorithm.advantage"),
        ({"name": "ppo", "normalize_std": True}, "algorithm.normalize_std"),
        ({"name": "ppo", "filter": "zero_variance"}, "algorithm.filter"),
        ({"clip": [0.0, 0.2]}, "algorithm.clip"),
        ({"clip": None}, "algorithm.clip"),
        ({"name": "dppo", "clip": [0.2, 1.0]}, "algorithm.clip"),
        ({"name": "cispo", "clip": [1.5, 4.0]}, "algorithm.clip"),
        ({"name": "icepop", "clip": [0.0, 4.0]}, "algorithm.clip"),
        ({"name": "sapo", "clip": [0.2, 0.2]}, "algorithm.clip"),
        ({"name": "sapo", "soft_temperatures": None}, "algorithm.soft_temperatures"),
        ({"soft_temperatures": [1.0, 1.0]}, "algorithm.soft_temperatures"),
        ({"soft_temperatures": [0.0, 1.0], "trust_region": "soft"}, "algorithm.soft_temperatures.0"),
        ({"name": "vespo", "gamma_curves": None}, "algorithm.gamma_curves"),
        ({"gamma_curves": [[2.0, 3.0], [3.0, 2.0]]}, "algorithm.gamma_curves"),
        ({"name": "vespo", "gamma_curves": [[2.0, 3.0], [3.0, 0.0]]}, "algorithm.gamma_curves.1.1"),
        ({"name": "vespo", "gamma_curves": [[2.0, 3.0], [10.5, 2.0]]}, "algorithm.gamma_curves.1.0"),
        ({"name": "vespo", "clip": [0.2, 0.2]}, "algorithm.clip"),
        ({"name": "vespo", "second_moment": 0.04}, "algorithm.second_moment"),
        ({"name": "clip_cov", "ratio": "sequence", "aggregate": "sequence"}, "algorithm.covariance_clip"),
        ({"covariance_clip": {"bounds": [1.0, 1.0]}}, "algorithm.covariance_clip.bounds"),
        ({"covariance_clip": {"share": 0.0}}, "algorithm.covariance_clip.share"),
        ({"name": "ppo", "covariance_clip": {}}, "algorithm.covariance_clip"),
        ({"name": "cispo", "centering": 8, "covariance_clip": {}}, "algorithm.centering"),
        ({"name": "vespo", "centering": 8}, "algorithm.centering"),
        ({"name": "cispo", "dual_clip": 3.0}, "algorithm.dual_clip"),
        ({"dual_clip": 1.0}, "algorithm.dual_clip"),
        ({"sequence_mask": [1.0, 2.0]}, "algorithm.sequence_mask"),
        ({"importance": "none"}, "algorithm.importance"),
        ({"name": "gpg", "ratio": "product", "aggregate": "sequence"}, "algorithm.importance"),
        ({"name": "cispo", "importance": "decoupled"}, "algorithm.importance"),
        ({"name": "gspo", "trust_region": "band"}, "algorithm.ratio"),
        ({"name": "gspo", "aggregate": "token"}, "algorithm.aggregate"),
        ({"name": "rloo", "aggregate": "constant"}, "algorithm.aggregate"),
        ({"name": "gmpo", "clip": [0.0, 0.4]}, "algorithm.clip"),
        ({"name": "reinforce_pp", "kl": 0.0, "normalize_std": True}, "algorithm.normalize_std"),
        ({"name": "gdpo", "normalize_std": True}, "algorithm.normalize_std"),
        ({"advantage": "maxrl"}, "algorithm.normalize_std"),
        ({"name": "remax", "normalize_std": True}, "algorithm.normalize_std"),
        ({"name": "remax", "kl": 0.1, "kl_place": "reward", "filter": "zero_variance"}, "algorithm.filter"),
        ({"name": "maxrl", "overlong_penalty": 1.0}, "algorithm.overlong_penalty"),
        ({"name": "gdpo", "overlong_penalty": 1.0}, "algorithm.overlong_penalty"),
        ({"importance": "decoupled", "dual_clip": 3.0}, "algorithm.dual_clip"),
        ({"name": "reinforce_pp", "filter": "zero_variance"}, "algorithm.filter"),
        ({"kl_estimator": "k1"}, "algorithm.kl_estimator"),
        ({"name": "rloo", "kl_estimator": "k2"}, "algorithm.kl_estimator"),
        ({"kl_place": "reward", "kl": 0.1}, "algorithm.filter"),
        ({"name": "ppo", "kl": 0.1, "filter": "zero_variance"}, "algorithm.filter"),
        ({"name": "maxrl", "kl_place": "reward", "kl": 0.1}, "algorithm.kl_place"),
        ({"name": "gdpo", "kl_place": "reward", "kl": 0.1}, "algorithm.kl_place"),
        ({"name": "reinforce_pp", "normalize_std": True}, "algorithm.normalize_std"),
        ({"overlong_buffer": 0.0}, "algorithm.overlong_buffer"),
        ({"truncated": "bootstrap"}, "algorithm.truncated"),
        ({"second_moment": 0.0}, "algorithm.second_moment"),
        ({"kl_control": {"target": 0.1}}, "algorithm.kl"),
        ({"kl": 0.1, "kl_control": {}}, "algorithm.kl_control.target"),
        ({"kl": 0.1, "kl_control": {"target": 0.1, "horizon": 0}}, "algorithm.kl_control.horizon"),
        ({"name": "rloo", "kl_control": {"target": 0.1}}, "algorithm.kl_control"),
        ({"entropy": 0.5, "entropy_control": {"max_coefficient": 0.1}}, "algorithm.entropy"),
        ({"name": "gspo", "second_moment": 0.04}, "algorithm.second_moment"),
    ],
    ids=str,
)
def test_a_combination_that_means_nothing_is_refused(algorithm, path):
    found = faults(**algorithm)
    assert list(found) == [path]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"clip": [0.999, 1e9]},
        {"name": "dppo", "clip": [0.99, 0.99]},
        {"name": "cispo", "clip": [1.0, 1e9]},
        {"name": "gspo", "trust_region": "none"},
        {"name": "gspo", "aggregate": "constant"},
        {"name": "gmpo", "clip": [1.5, 2.0]},
        {"trust_region": "log_clip"},
        {"name": "vespo", "gamma_curves": [[0.1, 10.0], [10.0, 0.1]]},
        {"name": "vespo", "aggregate": "sequence"},
        {"name": "clip_cov", "covariance_clip": {"share": 1.0, "bounds": [0.0, 0.1]}},
        {"name": "m2po", "covariance_clip": {}},
        {"clip": [1.0, 0.2]},
        {"name": "vespo", "ratio": "token", "aggregate": "constant"},
        {"trust_region": "gamma"},
        {"trust_region": "none"},
        {"dual_clip": 3.0},
        {"importance": "decoupled"},
        {"sequence_mask": [0.99, 1.01], "off_policy_mask": 0.5},
        {"name": "reinforce_pp", "advantage": "grpo", "filter": "zero_variance", "kl_place": "loss"},
        {"kl_place": "reward"},
        {"kl_place": "reward", "kl": 0.1, "filter": "none"},
        {"name": "maxrl", "kl_place": "loss", "kl": 0.1},
        {"name": "gdpo", "kl_place": "reward"},
        {"name": "ppo", "kl": 0.02},
        {"name": "remax", "filter": "zero_variance", "overlong_penalty": 1.0},
        {"name": "remax", "kl": 0.1, "kl_place": "reward", "kl_control": {"target": 0.1}},
        {"name": "ppo", "truncated": "bootstrap"},
        {"name": "rloo", "kl_place": "loss", "kl_control": {"target": 0.1}},
        {"name": "ppo", "kl": 0.1, "kl_control": {"target": 0.1}},
        {"entropy": 0.1, "entropy_control": {"max_coefficient": 0.1}},
        {"name": "m2po", "trust_region": "clip", "importance": "decoupled"},
    ],
    ids=str,
)
def test_a_combination_that_just_means_something_is_taken(algorithm):
    parse_spec(body(**algorithm))


@pytest.mark.parametrize("advantage", ESTIMATORS)
def test_a_weight_of_the_step_is_for_a_kl_that_is_taken_from_the_rewards_of_tokens(advantage):
    plain = {"advantage": advantage, "normalize_std": False, "filter": "none"}
    try:
        parse_spec(body(**plain, kl=0.1, kl_place="reward", kl_control={"target": 0.1}))
        refused = set()
    except SpecError as error:
        refused = {fault.path for fault in error.faults}
    assert ("algorithm.kl_control" not in refused) == ESTIMATORS[advantage].by_token


def test_a_critic_and_the_advantage_that_reads_it_need_each_other():
    for algorithm, trainer, path in (
        ({"name": "grpo", "advantage": "gae", "normalize_std": False, "filter": "none"}, {}, "trainer.critic"),
        ({"name": "ppo"}, {"critic": None}, "trainer.critic"),
        ({"name": "ppo", "advantage": "reinforce"}, {"critic": {}}, "trainer.critic"),
        ({"name": "ppo"}, {"critic": {"freeze": "attention", "kind": "head"}}, "trainer.critic.freeze"),
        ({"name": "sao"}, {"critic": {"kind": "lora", "warmup_steps": 0}}, "trainer.critic.freeze"),
        ({"name": "ppo"}, {"critic": {"rank": 4}}, "trainer.critic.rank"),
        ({}, {"critic": {}}, "trainer.critic"),
        ({"name": "ppo"}, {"critic": {"warmup_steps": 4}}, "trainer.critic.warmup_steps"),
    ):
        with pytest.raises(SpecError) as refused:
            parse_spec(BODY | {"algorithm": algorithm, "trainer": trainer})
        assert [fault.path for fault in refused.value.faults] == [path]


ON_RANKS = {
    **{name: {"algorithm": {"name": name}, "schedule": {"steps": 100}} for name in PRESETS if name not in {"gdpo", "opd"}},
    "vtrace": {"algorithm": {"name": "ppo"}, "trainer": {"critic": {"target": "vtrace"}}},
    "controllers": {"algorithm": {"kl": 0.1, "kl_control": {"target": 0.1}, "entropy_control": {}}},
    "several updates": {"trainer": {"inner": {"epochs": 2, "minibatches": 2, "stop_kl": 0.1}}},
}


@pytest.mark.parametrize("name", ON_RANKS)
def test_the_ranks_of_deepspeed_train_all_that_one_process_trains(name):
    given = BODY | ON_RANKS[name]
    assert parse_spec(given | {"trainer": given.get("trainer", {}) | {"backend": "deepspeed"}}).trainer.backend == "deepspeed"


def test_a_step_of_more_samples_than_the_horizon_would_leap():
    control = {"kl": 0.1, "kl_control": {"target": 0.1, "horizon": 255}}
    [fault] = need_faults(parse_spec(body(**control)))
    assert (fault.path, fault.allowed) == ("algorithm.kl_control.horizon", "at least 256")
    control["kl_control"]["horizon"] = 256
    assert list(need_faults(parse_spec(body(**control)))) == []


def test_a_preset_with_a_critic_brings_it_with_the_numbers_of_its_paper():
    vapo, sao = (parse_spec(BODY | {"algorithm": {"name": name}, "schedule": {"steps": 100}}) for name in ("vapo", "sao"))
    assert (vapo.algorithm.clip, vapo.algorithm.nll, vapo.trainer.critic.length_alpha) == ((0.2, 0.28), 0.1, 0.05)
    assert (vapo.trainer.critic.learning_rate, vapo.trainer.critic.warmup_steps, vapo.trainer.critic.value_lambda) == (2e-6, 50, 1.0)
    assert (sao.algorithm.trust_region, sao.algorithm.clip, sao.algorithm.whiten) == ("band", (0.3, 5.0), "none")
    assert sao.trainer.critic == CriticSpec(learning_rate=5e-6, updates=2, warmup_steps=10, length_alpha=1.5, freeze="attention")
    assert parse_spec(BODY | {"algorithm": {"name": "ppo"}}).trainer.critic == CriticSpec()


def test_a_field_of_the_critic_replaces_that_of_the_preset_and_a_stored_critic_does_not_change_with_it(monkeypatch):
    given = BODY | {"algorithm": {"name": "sao"}, "trainer": {"critic": {"warmup_steps": 1}, "learning_rate": 1e-5}}
    spec = parse_spec(given)
    assert spec.trainer == TrainerSpec(learning_rate=1e-5, critic=CriticSpec(**CRITICS["sao"]).model_copy(update={"warmup_steps": 1}))
    stored = json.loads(spec.model_dump_json())
    monkeypatch.setitem(CRITICS, "sao", {"learning_rate": 0.5})
    assert parse_spec(stored) == spec
    without = parse_spec(BODY | {"algorithm": {"name": "ppo", "advantage": "reinforce"}})
    assert without.trainer.critic is None
    assert parse_spec(json.loads(without.model_dump_json())) == without


@pytest.mark.parametrize("odd", [{"trainer": 3}, {"trainer": {"critic": 3}}, {"algorithm": []}, {"algorithm": {"name": {}}}], ids=str)
def test_sections_of_another_type_are_faults_of_their_own(odd):
    with pytest.raises(SpecError):
        parse_spec(BODY | {"algorithm": {"name": "sao"}} | odd)


def several(algorithm=None, trainer=None, schedule=None, **inner):
    """A spec whose steps make several updates."""
    sections = {"algorithm": algorithm or {}, "trainer": {"inner": inner} | (trainer or {}), "schedule": {"steps": 4} | (schedule or {})}
    return BODY | sections


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (several(minibatches=33), "trainer.inner.minibatches"),
        (several(minibatches=1025), "trainer.inner.minibatches"),
        (several(epochs=0), "trainer.inner.epochs"),
        (several(stop_kl=0.1), "trainer.inner.stop_kl"),
        (several(epochs=2, stop_kl=0.0), "trainer.inner.stop_kl"),
        (several(epochs=2, algorithm={"name": "gpg"}), "algorithm.trust_region"),
        (several(minibatches=2, algorithm={"trust_region": "none"}), "algorithm.trust_region"),
    ],
    ids=str,
)
def test_several_updates_that_could_not_be_made_or_that_nothing_bounds_are_refused(given, path):
    with pytest.raises(SpecError) as refused:
        parse_spec(given)
    assert [fault.path for fault in refused.value.faults] == [path]


@pytest.mark.parametrize(
    "given",
    [
        several(trainer={"backend": "deepspeed"}),
        several(epochs=64, minibatches=32),
        several(epochs=2, stop_kl=0.02),
        several(epochs=2, algorithm={"name": "gpg"}, schedule={"max_staleness": 0}),
        several(algorithm={"name": "gpg"}),
        several(epochs=2, algorithm={"name": "dro"}),
        several(epochs=2, algorithm={"importance": "decoupled"}),
    ],
    ids=str,
)
def test_several_updates_that_something_bounds_are_taken(given):
    parse_spec(given)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp"])
def test_a_trainer_of_adapters_takes_no_kl_from_the_reward(name):
    adapters = {"trainer": {"lora": {"rank": 4}}}
    with pytest.raises(SpecError) as refused:
        parse_spec(BODY | adapters | {"algorithm": {"name": name}})
    [fault] = refused.value.faults
    assert fault.path == "algorithm.kl_place"
    for other in ({"kl": 0.0}, {"kl_place": "loss"}):
        parse_spec(BODY | adapters | {"algorithm": {"name": name} | other})


def test_the_message_names_the_nearest_preset():
    assert "did you mean grpo" in faults(name="grop")["algorithm.name"].lower().replace('"', "").replace("`", "")
