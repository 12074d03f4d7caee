"""On-policy distillation: a student learns from a finished run what no scorer tells it."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus.client import document

ANSWERS = {"sun": "moon", "moon": "star", "star": "sky", "sky": "cloud", "cloud": "rain", "rain": "snow", "snow": "wind", "wind": "sun"}
EXACT = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.answer}}", "operation": "eq"}


def rows_of(pairs):
    return [{"prompt": f"{word} and", "answer": f" {answer}"} for word, answer in pairs]


@pytest.fixture(scope="module")
def answers(rows):
    """Each prompt and its only right answer."""
    return rows(rows_of(ANSWERS.items()))


@pytest.fixture(scope="module")
def guesser(lab, rows, models):
    """A finished run that answers with any of the words."""
    body = {
        "name": "guesser",
        "kind": "sft",
        "model": {"path": str(models / "llama")},
        "data": {"train": rows(rows_of((word, answer) for word in ANSWERS for answer in ANSWERS)), "completion": "answer"},
        "schedule": {"groups_per_step": 32, "steps": 40},
        "trainer": {"learning_rate": 1e-2},
        "checkpoint": {"every": 40},
    }
    return lab.train(body)


@pytest.fixture(scope="module")
def teacher(lab, answers, guesser):
    """A finished run that has learned the answers."""
    body = {
        "name": "teacher",
        "kind": "sft",
        "model": {"run": guesser["id"]},
        "data": {"train": answers, "completion": "answer"},
        "schedule": {"groups_per_step": 8, "steps": 100},
        "trainer": {"learning_rate": 3e-3},
        "checkpoint": {"every": 100},
    }
    return lab.train(body)


@pytest.fixture
def student(spec, answers, guesser, teacher):
    """A run that begins as the guesser and has no rewards."""

    def make(**changes):
        body = spec(
            name="student",
            model={"run": guesser["id"]},
            data={"train": answers},
            rollout={"group_size": 8, "max_new_tokens": 3},
            algorithm={"name": "opd"},
            teacher={"run": teacher["id"]},
            schedule={"groups_per_step": 8, "steps": 400, "max_staleness": 1},
            trainer={"learning_rate": 3e-3},
            checkpoint={"every": 200},
        )
        del body["reward"]
        return {name: body.get(name, {}) | fields if isinstance(fields, dict) else fields for name, fields in (body | changes).items()}

    return make


def exported(lab, run, folder):
    lab.client.export(run["id"], folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@torch.no_grad()
def response_logprobs(model, tokens, temperature=1.0):
    """Float64, `[T]`."""
    prompt, ids = tokens["prompt_ids"], tokens["ids"]
    logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()


def kls_of(lab, run):
    return [step["teacher_kl"] for step in lab.events(run["id"], "metrics")]


@pytest.mark.slow  # a minute: four hundred steps
def test_a_student_becomes_as_good_as_its_teacher_by_the_teachers_word_alone(lab, student, teacher, spec, answers, gradbus):
    body = student(data={"train": answers, "eval": answers}, reward={"grader": EXACT}, evaluation={"every": 200, "samples": 8})
    of_teacher = spec(model={"run": teacher["id"]}, data=body["data"], reward=body["reward"], evaluation={"samples": 8})
    run = lab.train(body)
    kls, accuracies = kls_of(lab, run), [found["accuracy"] for found in lab.events(run["id"], "evaluation")]
    assert np.mean(kls[:10]) > 0.5, kls
    assert abs(np.mean(kls[-20:])) < 0.1 * np.mean(kls[:10]), kls
    [best, *_] = [found["accuracy"] for found in lab.events(lab.train(of_teacher)["id"], "evaluation")]
    assert accuracies[0] < best / 2, (accuracies, best)
    assert accuracies[-1] >= best - 1 / 8, (accuracies, best)
    assert all(sample["reward_status"] == "none" for sample in lab.samples(run["id"]))
    assert "reward" not in lab.events(run["id"], "metrics")[0]
    (listed,) = [line for line in gradbus("runs").stdout.splitlines() if run["id"] in line]
    assert "  teacher KL " in listed
    assert f"  held-out {accuracies[-1]:.3f}" in listed
    assert "reward" not in listed


def test_the_teachers_log_probabilities_are_those_of_its_version_at_the_rollouts_temperature(lab, student, teacher, gradbus, tmp_path):
    run = lab.train(student(schedule={"steps": 3}, rollout={"temperature": 0.7}, algorithm={"kl": 0.1}, checkpoint={"every": 3}))
    model = exported(lab, teacher, tmp_path / "teacher")
    ratios = [[] for _ in range(3)]
    for sample in document(lab.client.samples_page(run["id"], limit=1000, include="tokens"))["data"]:
        tokens = sample["tokens"]
        np.testing.assert_allclose(tokens["teacher_logprobs"], response_logprobs(model, tokens, 0.7), atol=2e-5)
        assert not np.allclose(tokens["teacher_logprobs"], tokens["reference_logprobs"], atol=1e-2)
        assert (sample["reward"], sample["advantage"], sample["verdict"]) == (None, None, "train")
        ratios[sample["step"]] += [mu - log for mu, log in zip(tokens["logprobs"], tokens["teacher_logprobs"], strict=True)]
    assert kls_of(lab, run) == pytest.approx([np.mean(step) for step in ratios], abs=1e-5)
    assert lab.learned(run)
    first = gradbus("samples", run["id"], "--index", 0).stdout.splitlines()[0]
    assert first == "0.0  step 0  version 0  train"
    tree = gradbus("lineage", run["id"]).stdout
    assert f"taught by version 100 of {teacher['id']}" in tree
    assert f"{run['id']}  student  succeeded  taught by version 100" in gradbus("lineage", teacher["id"]).stdout
    lab.gone("reference")


def test_a_teacher_beside_rewards_adds_its_part_to_the_advantages(lab, student, spec):
    rewarded = {"algorithm": {"name": "grpo", "filter": "none"}, "reward": spec()["reward"], "schedule": {"steps": 4}}
    run = lab.train(student(**rewarded, teacher={"coefficient": 0.5}))
    alone = {name: value for name, value in student(**rewarded).items() if name != "teacher"}
    steps = lab.events(run["id"], "metrics")
    assert all("teacher_kl" in step and "reward" in step for step in steps)
    assert lab.final_digest(run) != lab.final_digest(lab.train(alone))


@pytest.mark.slow
def test_rows_of_the_teacher_teach_more_than_its_word_for_the_sampled_token(lab, student, teacher, tmp_path):
    algorithm = {"importance": "none", "trust_region": "none"}
    run = lab.train(student(algorithm=algorithm, teacher={"top_k": 8}, schedule={"steps": 160}, checkpoint={"every": 160}))
    kls, losses = kls_of(lab, run), [step["loss"] for step in lab.events(run["id"], "metrics")]
    assert np.mean(kls[:5]) > 0.5, kls
    assert abs(np.mean(kls[-20:])) < 0.15 * np.mean(kls[:5]), kls
    assert min(losses) >= 0.0, "a KL"
    assert losses[-1] < 0.15 * losses[0], losses
    policy, model, expected = exported(lab, student_of(lab, run), tmp_path / "guesser"), exported(lab, teacher, tmp_path / "teacher"), []
    for sample in document(lab.client.samples_page(run["id"], step=0, limit=1000, include="tokens"))["data"]:
        mine, theirs = (rows_of_model(one, sample["tokens"]) for one in (policy, model))
        expected += row_kls(mine, theirs, 8)
    assert losses[0] == pytest.approx(np.mean(expected), rel=1e-4)


def student_of(lab, run):
    """The run from which a run starts."""
    return document(lab.client.run(run["spec"]["model"]["run"]))


@torch.no_grad()
def rows_of_model(model, tokens):
    """Log-probabilities of every token at the positions of a response, float64 `[T, V]`."""
    prompt, ids = tokens["prompt_ids"], tokens["ids"]
    return model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1).numpy()


def row_kls(mine, theirs, count):
    """The reverse KL at each position over the teacher's most likely tokens and all others together."""
    found = []
    for policy, teacher in zip(np.exp(mine), np.exp(theirs), strict=True):
        top = np.argsort(-teacher)[:count]
        q, p = (np.append(row[top], max(row.sum() - row[top].sum(), 1e-300)) for row in (policy, teacher))
        found.append(float((q * np.log(q / p)).sum()))
    return found
