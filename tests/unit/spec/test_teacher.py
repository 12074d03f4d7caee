"""A teacher in the spec: what needs it, what it needs, and each combination that is refused."""

import pytest

from gradbus.algorithms import algorithm_of, needs_reference_logprobs, needs_reference_service
from gradbus.errors import SpecError
from gradbus.spec import parse_spec

GRADER = {"type": "string_check", "input": "a", "reference": "b"}
TEACHER = {"path": "teacher"}


def distilled(**sections):
    body = {"name": "r", "model": {"path": "m"}, "data": {"train": "d"}, "schedule": {"steps": 2}}
    body |= {"algorithm": {"name": "opd"}, "teacher": TEACHER} | sections
    return {name: value for name, value in body.items() if value is not None}


def beside(**sections):
    """A teacher beside the rewards of a grader."""
    return distilled(
        **{
            "algorithm": {"name": "grpo", "filter": "none"},
            "teacher": TEACHER | {"coefficient": 0.5},
            "reward": {"grader": GRADER},
        }
        | sections
    )


def faults(body):
    with pytest.raises(SpecError) as caught:
        parse_spec(body)
    return {fault.path: str(fault) for fault in caught.value.faults}


def test_a_run_with_a_teacher_needs_no_reward_and_the_reference_service():
    spec = parse_spec(distilled())
    algorithm = algorithm_of(spec)
    assert (algorithm.is_scored, algorithm.is_sampled, algorithm.needs_teacher, algorithm.teacher_weight) == (False, True, True, 1.0)
    assert not algorithm.has_sample_advantages
    assert "teacher_kl" in algorithm.metric_names
    assert (needs_reference_service(spec), needs_reference_logprobs(spec)) == (True, False)
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_a_teacher_beside_rewards_has_the_weight_of_its_coefficient():
    algorithm = algorithm_of(parse_spec(beside()))
    assert (algorithm.is_scored, algorithm.teacher_weight, algorithm.has_sample_advantages) == (True, 0.5, False)
    without = algorithm_of(parse_spec(beside(teacher=None)))
    assert (without.needs_teacher, without.has_sample_advantages) == (False, True)
    assert "teacher_kl" not in without.metric_names


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce", "opo", "maxrl", "pass_k"])
@pytest.mark.parametrize("name", ["distill", "beside"])
def test_other_settings_go_with_a_teacher(advantage, name):
    algorithm = {"advantage": advantage, "normalize_std": False, "filter": "none"} if name == "beside" else {"name": "opd", "kl": 0.1}
    parse_spec((beside if name == "beside" else distilled)(algorithm=algorithm, rollout={"group_size": 2}))


REFUSED = {
    "no teacher": (distilled(teacher=None), "teacher", "advantage = distill needs a teacher"),
    "a teacher that nothing reads": (beside(teacher=TEACHER), "teacher.coefficient", 'algorithm.advantage = "distill"'),
    "a coefficient without rewards": (distilled(teacher=TEACHER | {"coefficient": 1.0}), "teacher.coefficient", "trainer.learning_rate"),
    "a coefficient of nothing": (beside(teacher=TEACHER | {"coefficient": 0.0}), "teacher.coefficient", "greater than 0"),
    "a deviation": (distilled(algorithm={"name": "opd", "normalize_std": True}), "algorithm.normalize_std", "allowed: false"),
    "whitening": (distilled(algorithm={"name": "opd", "whiten": "tokens"}), "algorithm.whiten", "divided by its noise"),
    "a filter": (distilled(algorithm={"name": "opd", "filter": "zero_variance"}), "algorithm.filter", "no rewards that could be equal"),
    "a penalty of the reward": (distilled(algorithm={"name": "opd", "overlong_penalty": 1.0}), "algorithm.overlong_penalty", "no reward"),
    "a KL in the reward": (distilled(algorithm={"name": "opd", "kl_place": "reward"}), "algorithm.kl_place", 'allowed: "loss"'),
    "a reward that judges nothing": (distilled(reward={"grader": GRADER}), "reward", "no [reward], or data.eval"),
    "held-out rows without a reward": (distilled(data={"train": "d", "eval": "e"}), "reward", "exactly one source"),
    "whitening beside rewards": (
        beside(algorithm={"name": "reinforce_pp", "kl": 0.0}),
        "algorithm.whiten",
        "moved by the mean of the step",
    ),
    "a filter beside rewards": (beside(algorithm={"name": "grpo"}), "algorithm.filter", "by what the teacher adds"),
    "a critic": (
        beside(algorithm={"name": "ppo", "whiten": "none"}, trainer={"critic": {}}),
        "teacher",
        "to which nothing is added",
    ),
    "turns on a device": (
        distilled(rollout={"engine": "sglang", "placement": "timed"}),
        "teacher",
        "keep its memory on the device",
    ),
    "no source": (distilled(teacher={}), "teacher", "exactly one of `path`, `run` and `url`"),
    "two sources": (distilled(teacher={"path": "a", "run": "b"}), "teacher", "exactly one of `path`, `run` and `url`"),
    "a version of a folder": (distilled(teacher={"path": "a", "version": 3}), "teacher.version", "only a run has versions"),
    "a field that it has not": (distilled(teacher={"path": "a", "weight": 3}), "teacher.weight", "unknown field"),
}


ROWS = {"name": "opd", "importance": "none", "trust_region": "none"}
TOP = TEACHER | {"top_k": 4}
REFUSED |= {
    "a ratio beside rows": (distilled(teacher=TOP), "algorithm.importance", "compares whole rows"),
    "rows beside rewards": (beside(teacher=TOP | {"coefficient": 1.0}), "teacher.top_k", "a row has none"),
    "a KL beside rows": (distilled(teacher=TOP, algorithm=ROWS | {"kl": 0.1}), "algorithm.kl", "is the KL alone"),
    "an entropy beside rows": (distilled(teacher=TOP, algorithm=ROWS | {"entropy": 0.1}), "algorithm.entropy", "is the KL alone"),
    "a mask beside rows": (
        distilled(teacher=TOP, algorithm=ROWS | {"off_policy_mask": 0.5}),
        "algorithm.off_policy_mask",
        "is the KL alone",
    ),
    "a drift beside rows": (distilled(teacher=TOP, algorithm=ROWS | {"drift": 0.1}), "algorithm.drift", "is the KL alone"),
    "outliers beside rows": (
        distilled(teacher=TOP, algorithm=ROWS | {"second_moment": 0.1}),
        "algorithm.second_moment",
        "is the KL alone; given 0.1; allowed: leave it out",
    ),
    "a clip of covariances beside rows": (
        distilled(teacher=TOP, algorithm=ROWS | {"covariance_clip": {}}),
        "algorithm.covariance_clip",
        "is the KL alone",
    ),
    "a controller beside rows": (
        distilled(teacher=TOP, algorithm=ROWS | {"entropy_control": {"target": 0.2}}),
        "algorithm.entropy_control",
        "is the KL alone",
    ),
    "best samples without rewards": (distilled(teacher=TEACHER, algorithm={"name": "opd", "nll": 0.1}), "algorithm.nll", "no reward"),
    "rows of equal numerics": (distilled(teacher=TOP, algorithm=ROWS, numerics="batch_invariant"), "numerics", "other operators"),
    "no rows": (distilled(teacher=TEACHER | {"top_k": 0}, algorithm=ROWS), "teacher.top_k", "greater than or equal to 1"),
    "too many rows": (
        distilled(teacher=TEACHER | {"top_k": 128}, algorithm=ROWS, rollout={"max_new_tokens": 32769, "group_size": 1}),
        "teacher.top_k",
        "at most 4194304",
    ),
    "too many rows of a group": (
        distilled(teacher=TEACHER | {"top_k": 128}, algorithm=ROWS, rollout={"max_new_tokens": 8193, "group_size": 8}),
        "teacher.top_k",
        "at most 8388608",
    ),
}


def test_rows_of_a_teacher_are_trained_without_a_ratio():
    largest = {"max_new_tokens": 8192, "group_size": 8}
    spec = parse_spec(distilled(teacher=TEACHER | {"top_k": 128}, algorithm=ROWS, rollout=largest))
    assert (spec.teacher.top_k, spec.algorithm.advantage, spec.algorithm.clip) == (128, "distill", None)
    parse_spec(distilled(teacher=TEACHER | {"top_k": 128}, algorithm=ROWS, rollout={"max_new_tokens": 32768, "group_size": 2}))


@pytest.mark.parametrize(("body", "path", "words"), REFUSED.values(), ids=REFUSED)
def test_what_a_teacher_does_not_go_with_is_refused(body, path, words):
    found = faults(body)
    assert found.keys() == {path}
    assert words in found[path]


@pytest.mark.parametrize("kind", ["sft", "dpo", "reward_model"])
def test_given_responses_have_no_teacher(kind):
    body = {"name": "r", "kind": kind, "model": {"path": "m"}, "data": {"train": "d"}, "schedule": {"steps": 2}}
    parse_spec(body)
    found = faults(body | {"teacher": TEACHER})
    assert found.keys() == {"teacher"}
    assert f"a run of kind {kind} samples nothing that a teacher could judge" in found["teacher"]


def test_held_out_rows_are_judged_by_a_reward():
    spec = parse_spec(distilled(data={"train": "d", "eval": "e"}, reward={"grader": GRADER}))
    assert not algorithm_of(spec).is_scored


def test_one_answer_has_the_faults_of_a_teacher_beside_those_of_other_sections():
    found = faults(distilled(trainer={"learning_rate": -1.0}, teacher={"path": "a", "run": "b", "coefficient": 1.0}))
    assert found.keys() == {"trainer.learning_rate", "teacher", "teacher.coefficient"}


SERVED = {"url": "http://teacher:30000"}
HAS = {"model_path": "m", "weight_version": "default", "vocab_size": 56}


@pytest.mark.parametrize("url", ["http://teacher:30000", "https://teacher.example/v0/", "http://[::1]:30000", "http://127.0.0.1:1"])
def test_a_teacher_may_be_a_server_whose_numbers_no_seed_decides(url):
    spec = parse_spec(distilled(teacher={"url": url}))
    assert (spec.teacher.source, spec.is_deterministic, needs_reference_service(spec)) == (url, False, True)
    assert parse_spec(spec.model_dump(mode="json")) == spec
    timed = {"placement": "timed", "engine": "sglang"}
    parse_spec(distilled(teacher={"url": url}, rollout=timed, schedule={"steps": 2, "max_staleness": 1}))


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"teacher": SERVED | {"path": "m"}}, "teacher", "given path and url; allowed: exactly one of `path`, `run` and `url`"),
        ({"teacher": {}}, "teacher", "given none; allowed: exactly one of `path`, `run` and `url`"),
        ({"teacher": SERVED | {"version": 3}}, "teacher.version", "only a run has versions"),
        ({"teacher": SERVED | {"revision": "0" * 40}}, "teacher.revision", "only a hub id has a revision"),
        ({"teacher": SERVED | {"files": {"a": "sha256:" + "0" * 64}}}, "teacher.files", "a server has its own"),
        ({"teacher": TEACHER | {"served": HAS}}, "teacher.served", "only a server has it"),
        ({"teacher": SERVED, "deterministic": True}, "deterministic", "in their last bits"),
        ({"teacher": SERVED, "rollout": {"temperature": 0.7}}, "rollout.temperature", "given 0.7; allowed: 1.0"),
        ({"teacher": {"url": "teacher:30000"}}, "teacher.url", "http(s)://host:port of an SGLang server"),
        ({"teacher": {"url": "grpc://teacher:1"}}, "teacher.url", "http(s)://host:port of an SGLang server"),
        ({"teacher": {"url": "http://user:word@teacher"}}, "teacher.url", "http(s)://host:port of an SGLang server"),
        ({"teacher": {"url": "http://teacher/?a=b"}}, "teacher.url", "http(s)://host:port of an SGLang server"),
    ],
    ids=str,
)
def test_what_does_not_fit_a_server_is_refused(changes, path, words):
    assert words in faults(distilled(**changes))[path]


def test_rows_that_a_server_would_send_for_minutes_are_refused():
    body = distilled(
        teacher=SERVED | {"top_k": 128},
        algorithm={"name": "opd", "importance": "none", "trust_region": "none"},
        rollout={"group_size": 1, "max_new_tokens": 8193},
    )
    assert "the product max_new_tokens · top_k is too large for a server's answer; given 1048704" in faults(body)["teacher.top_k"]
