"""A KL to a version of the run itself."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus.client import document


@torch.no_grad()
def response_logprobs(model, tokens):
    """Float64, `[T]`."""
    prompt, ids = tokens["prompt_ids"], tokens["ids"]
    logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("trainer", [{"learning_rate": 1e-2}, {"learning_rate": 3e-2, "lora": {"rank": 2}}], ids=["whole", "adapters"])
def test_each_samples_reference_is_the_version_of_the_last_multiple(lab, spec, tmp_path, trainer):
    """Versions of a delta transport too: those that are compared with are stored whole."""
    algorithm = {"kl": 0.1, "kl_reference_steps": 2, "filter": "none"}
    run = lab.train(
        spec(algorithm=algorithm, trainer=trainer, schedule={"steps": 6}, weights={"transport": "delta"}, checkpoint={"every": 2})
    )
    models = {0: AutoModelForCausalLM.from_pretrained(spec()["model"]["path"])}
    for version in (2, 4):
        lab.client.export(run["id"], tmp_path / str(version), version)
        models[version] = AutoModelForCausalLM.from_pretrained(tmp_path / str(version))
    seen = set()
    for sample in document(lab.client.samples_page(run["id"], limit=1000, include="tokens"))["data"]:
        reference = sample["versions"][0]["version"] // 2 * 2
        seen.add(reference)
        found = sample["tokens"]["reference_logprobs"]
        np.testing.assert_allclose(found, response_logprobs(models[reference], sample["tokens"]), atol=5e-5)
        other = response_logprobs(models[{0: 2, 2: 4, 4: 0}[reference]], sample["tokens"])
        assert not np.allclose(found, other, atol=2e-4)
    assert seen == {0, 2, 4}


def test_a_fork_of_adapters_compares_its_first_samples_with_the_version_that_drew_them(lab, spec):
    """Its version 0, which is not the base model."""
    parent = lab.train(spec(name="first-adapters", trainer={"learning_rate": 3e-2, "lora": {"rank": 2}}))
    algorithm = {"kl": 0.1, "kl_reference_steps": 2, "filter": "none"}
    run = lab.train({"fork_of": {"run": parent["id"], "version": 2}, "name": "on", "schedule": {"steps": 2}, "algorithm": algorithm})
    base = AutoModelForCausalLM.from_pretrained(spec()["model"]["path"])
    samples = document(lab.client.samples_page(run["id"], limit=1000, include="tokens"))["data"]
    drawn = [sample["tokens"] for sample in samples if sample["versions"][0]["version"] == 0]
    assert drawn
    for tokens in drawn:
        np.testing.assert_allclose(tokens["reference_logprobs"], tokens["logprobs"], atol=5e-5)
        assert not np.allclose(tokens["reference_logprobs"], response_logprobs(base, tokens), atol=2e-4)
