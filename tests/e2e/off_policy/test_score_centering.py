"""Score centring: rows of the version that sampled, and what the trainer makes of them."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus.client import document

COUNT = 8


@torch.no_grad()
def table(model, tokens, temperature):
    """Probabilities of every token at the positions of a response, float64 `[T, V]`."""
    prompt, ids = tokens["prompt_ids"], tokens["ids"]
    return (model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double() / temperature).softmax(-1).numpy()


def total_variation(sampler, trained):
    """Over the sampler's most likely tokens and all others together, of each position."""
    for q, p in zip(sampler, trained, strict=True):
        top = np.argsort(-q)[:COUNT]
        yield (np.abs(q[top] - p[top]).sum() + abs(q[top].sum() - p[top].sum())) / 2


@pytest.mark.parametrize("trainer", [{"learning_rate": 1e-2}, {"learning_rate": 3e-2, "lora": {"rank": 2}}], ids=["whole", "adapters"])
def test_the_distance_of_a_step_is_that_of_the_versions_before_it_and_behind_its_samples(lab, spec, tmp_path, trainer):
    run = lab.train(
        spec(
            algorithm={"name": "score_centering", "centering": COUNT, "filter": "none"},
            rollout={"temperature": 0.7},
            trainer=trainer,
            schedule={"steps": 4, "max_staleness": 2},
            checkpoint={"every": 1},
        )
    )
    models = {0: AutoModelForCausalLM.from_pretrained(spec()["model"]["path"])}
    for version in range(1, 4):
        lab.client.export(run["id"], tmp_path / str(version), version)
        models[version] = AutoModelForCausalLM.from_pretrained(tmp_path / str(version))
    steps = lab.events(run["id"], "metrics")
    for step in steps:
        found = []
        for sample in document(lab.client.samples_page(run["id"], step=step["step"], limit=1000, include="tokens"))["data"]:
            sampler, trained = (table(models[at], sample["tokens"], 0.7) for at in (sample["versions"][0]["version"], step["step"]))
            found += total_variation(sampler, trained)
        assert step["total_variation"] == pytest.approx(np.mean(found), abs=1e-5)
    assert steps[0]["total_variation"] < 1e-5
    assert steps[-1]["total_variation"] > 1e-4
