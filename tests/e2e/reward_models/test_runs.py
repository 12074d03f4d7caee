"""Runs whose rewards are a reward model's scores: the reference service computes them, and its death changes no bit."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from gradbus.client import document

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def scored(spec, reward_model):
    """A run of twelve steps that the reward model scores."""

    def make(**changes):
        return spec(reward={"model": {"path": str(reward_model)}}, schedule={"groups_per_step": 4, "steps": 12}, **changes)

    return make


def test_every_reward_is_the_score_of_the_samples_tokens_and_the_run_learns(lab, scored, reward_model, rows):
    held_out = rows([{"prompt": "sun and"}, {"prompt": "sky and"}])
    data = {"eval": held_out}
    run = lab.train(scored(data=data, evaluation={"every": 6, "samples": 2}, trainer={"learning_rate": 0.02}))
    model = AutoModelForSequenceClassification.from_pretrained(reward_model)
    assert len(lab.samples(run["id"])) == 12 * 4 * 4
    for sample in document(lab.client.samples_page(run["id"], step=11, include="tokens"))["data"]:
        ids = torch.tensor([*sample["tokens"]["prompt_ids"], *sample["tokens"]["ids"]])[None]
        with torch.no_grad():
            assert sample["reward"] == pytest.approx(float(model(ids).logits), abs=1e-4)
        assert sample["reward_status"] == "ok"
    rewards = [step["reward"] for step in lab.events(run["id"], "metrics")]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]), rewards
    lab.gone("reference")


def test_a_death_of_the_reference_service_changes_no_bit(lab, scored):
    """Of a run that asks it for scores and for log-probabilities."""

    def pid():
        return json.loads((lab.state / "stack.json").read_text())["processes"].get("reference", {}).get("pid")

    spec = scored(algorithm={"kl": 0.01})
    calm, run_id = lab.train(spec), lab.submit(spec)
    lab.until(run_id, lambda run: run["progress"]["step"] > 0)  # most of the run is still to be scored, on a busy machine too
    killed = pid()
    os.kill(killed, signal.SIGKILL)
    lab.until(run_id, lambda _: pid() not in {killed, None})
    run = lab.ends(run_id)
    assert lab.final_digest(run) == lab.final_digest(calm)
