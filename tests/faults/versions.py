"""Whether samples come from the versions they name: their log-probabilities, worked out again from the stored weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from ledger import Ledger
from transformers import AutoModelForCausalLM

from gradbus.v1.group_pb2 import Group, Verdict
from gradbus.v1.sample_pb2 import Sample, Span


def worst_difference(state: Path, model: Path, ledger: Ledger, most_samples: int = 60) -> float:
    """Largest |log-prob recorded - log-prob of the named version| over the first spans of some samples, nats."""
    shards = {manifest.step: manifest.weights.shards[0].digest for manifest in ledger.checkpoints}
    network = AutoModelForCausalLM.from_pretrained(model)
    worst, seen = 0.0, 0
    for index in ledger.order[len(ledger.order) // 3 :]:
        entry = ledger.entries[index]
        if entry.verdict == Verdict.VERDICT_DROPPED or seen >= most_samples:
            continue
        group = Group.FromString(entry.group)
        for sample in group.samples[:2]:
            span = sample.spans[0]
            if span.version not in shards:
                continue
            blob = state / "objects" / "blobs" / shards[span.version].removeprefix("sha256:")
            network.load_state_dict(safetensors.torch.load_file(blob), strict=False)
            worst = max(worst, logprob_difference(network, group, sample, span))
            seen += 1
    assert seen, "no sample of a stored version was found"
    return worst


def logprob_difference(network: torch.nn.Module, group: Group, sample: Sample, span: Span) -> float:
    """The largest of a span's tokens, nats. `network` computes all tokens up to the span's end."""
    prompt = np.frombuffer(group.prompt_ids, "<i4")
    tokens = np.frombuffer(sample.token_ids, "<i4")[: span.end]
    recorded = torch.tensor(np.frombuffer(sample.logprobs, "<f4")[: span.end].copy())
    ids = torch.tensor(np.concatenate([prompt, tokens]), dtype=torch.long)[None]
    with torch.no_grad():
        logits = network(ids).logits[0, len(prompt) - 1 : -1]
    computed = torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    return float((computed - recorded)[span.start :].abs().max())
