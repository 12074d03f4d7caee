"""A tiny model and steps to train it with, the same wherever learners are compared.

Run by torchrun it is a trainer of several ranks: `learner_lab.py PLAN`, where PLAN is the JSON of a `Plan`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gradbus.algorithms import Coefficients, SampleMarks
from gradbus.spec import CovarianceClipSpec, CriticSpec, DeepSpeedSpec, InnerSpec, LoraSpec, RunSpec
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.covariance import without_covarying

VOCAB = 19
SPEC = RunSpec.model_validate(
    {
        "name": "contract",
        "model": {"path": "m"},
        "data": {"train": "t"},
        "reward": {"service": "grpc://scorer:1"},
        "algorithm": {"entropy": 0.01},
        "schedule": {"steps": 8},
        "trainer": {"learning_rate": 1e-2, "weight_decay": 0.1, "warmup_steps": 2, "lr_schedule": "cosine", "micro_batch_tokens": 40},
    }
)
LORA_SPEC = SPEC.model_copy(
    update={
        "algorithm": SPEC.algorithm.model_copy(update={"kl": 0.1}),
        "trainer": SPEC.trainer.model_copy(update={"lora": LoraSpec(rank=3, alpha=6.0)}),
    }
)
"""Adapters, and a KL to what the model is without them."""


def ppo_spec(spec: RunSpec, critic: dict) -> RunSpec:
    """`spec` with advantages by a critic of these fields."""
    settings = CriticSpec(**critic)
    algorithm = spec.algorithm.model_copy(update={"advantage": "gae", "normalize_std": False, "whiten": "tokens", "filter": "none"})
    return spec.model_copy(update={"algorithm": algorithm, "trainer": spec.trainer.model_copy(update={"critic": settings})})


def kind_spec(kind: str, lora: dict | None = None) -> RunSpec:
    """A run on pairs or labels, with the trainer of `SPEC`; a reward model keeps its scores around 0."""
    trainer = {"learning_rate": 1e-2, "weight_decay": 0.1, "warmup_steps": 2, "micro_batch_tokens": 40} | ({"lora": lora} if lora else {})
    body = {"name": "pairs", "kind": kind, "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 8}}
    center = {"preference": {"center": 0.1}} if kind == "reward_model" else {}
    return RunSpec.model_validate(body | center | {"trainer": trainer})


def pair_batch(step: int) -> Batch:
    """Four pairs, with reference log-probabilities and, in place of advantages, labels; some tokens are not trained."""
    rng, rows = np.random.default_rng(100 + step), []
    for n in range(8):
        prompt = np.arange(2 + n // 2, dtype=np.int32)
        response = rng.integers(0, VOCAB, 1 + (n * 3 + step) % 5).astype(np.int32)
        trainable = rng.random(len(response)) < 0.8
        trainable[0] = True
        zeros, label = np.zeros(len(response), np.float32), (1.0, 0.0, -1.0, 0.0)[n % 4]
        reference = rng.normal(-3.0, 0.2, len(response)).astype(np.float32)
        rows.append(TrainSample(prompt, response, zeros, trainable, np.full(len(response), label, np.float32), reference))
    return Batch(step, rows)


@dataclass(frozen=True)
class Case:
    """Fields of the algorithm, of its updates in a step and of its critic, and what the rows of a batch have beside their tokens."""

    algorithm: dict = field(default_factory=dict)
    inner: dict = field(default_factory=dict)
    critic: dict | None = None
    rows: Callable[[np.random.Generator, TrainSample], dict] = lambda rng, row: {}
    coefficients: Callable[[int], Coefficients | None] = lambda step: None

    def spec(self) -> RunSpec:
        """`SPEC` with the fields."""
        spec = SPEC if self.critic is None else ppo_spec(SPEC, self.critic)
        trainer = spec.trainer.model_copy(update={"inner": InnerSpec(**self.inner)})
        return spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update=self.algorithm), "trainer": trainer})

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        rng = np.random.default_rng(50 + step)
        return Batch(step, [replace(row, **self.rows(rng, row)) for row in batch(step).samples])


def _reference(rng, row):
    return {"reference_logprobs": rng.normal(-3.0, 0.2, len(row.token_ids)).astype(np.float32)}


def _sparse(count):
    """For each token `count` others and their share of the probability, and that of the rest."""

    def rows(rng, row):
        ids = np.stack([rng.permutation(VOCAB)[:count] for _ in row.token_ids]).astype(np.int32)
        logprobs = np.log(rng.dirichlet(np.ones(count + 1), len(row.token_ids))).astype(np.float32)
        return ids, logprobs

    return rows


CASES = {
    "V-trace of the policy's states": Case(critic={"kind": "head", "learning_rate": 1e-2, "target": "vtrace", "value_lambda": 0.9}),
    "V-trace of a model": Case(critic={"kind": "full", "learning_rate": 1e-3, "target": "vtrace", "updates": 2}),
    "several updates": Case({"importance": "decoupled"}, {"epochs": 2, "minibatches": 2}),
    "updates to a bound": Case(inner={"epochs": 4, "stop_kl": 2e-3}),
    "second moment": Case({"second_moment": 0.02, "trust_region": "none", "clip": None}),
    "best samples": Case({"nll": 0.3}, rows=lambda rng, row: {"marks": SampleMarks(best=bool(rng.random() < 0.5))}),
    "controllers": Case({"kl": 0.1}, rows=_reference, coefficients=lambda step: Coefficients(0.1 * step, 0.02 * (step % 2))),
    "a teacher's rows": Case(
        {"importance": "none", "trust_region": "none", "clip": None, "entropy": 0.0},
        rows=lambda rng, row: {"teacher_rows": _sparse(3)(rng, row)},
    ),
    "the sampler's rows": Case(
        {"trust_region": "cap", "clip": (1.0, 1.0), "centering": 4}, rows=lambda rng, row: {"behaviour_rows": _sparse(4)(rng, row)}
    ),
}
"""What a step reads beside tokens, or does beside one update."""


def make_model(path: Path) -> Path:
    """Random weights, the same ones each time; sizes that two ranks cannot share out evenly."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 2, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(path)
    return path


def make_scorer(path: Path) -> Path:
    """A reward model of these sizes."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 2, "num_attention_heads": 1}
    LlamaForSequenceClassification(LlamaConfig(**sizes, num_labels=1, pad_token_id=0)).save_pretrained(path)
    return path


def make_mixture(path: Path) -> Path:
    """The same with more experts than a short row has tokens, so ranks choose other ones."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 2, "num_attention_heads": 1}
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 9, "mlp_only_layers": [0], "num_key_value_heads": 1}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, tie_word_embeddings=True)).save_pretrained(path)
    return path


def make_wide_model(path: Path) -> Path:
    """Weights of 270 MB in float32, of which the largest takes 17 MB."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8}
    LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(path)
    return path


def batch(step: int) -> Batch:
    """Eight rows of different lengths."""
    rng = np.random.default_rng(step)
    samples = []
    for n in range(8):
        prompt, response = (rng.integers(0, VOCAB, size).astype(np.int32) for size in (3 + step % 2, 1 + n % 4))
        logprobs = rng.normal(-3.0, 0.2, len(response)).astype(np.float32)
        samples.append(
            TrainSample(prompt, response, logprobs, np.ones(len(response), bool), np.full(len(response), rng.normal(), np.float32))
        )
    return Batch(step, samples)


def deepspeed_spec(spec: RunSpec = SPEC, **settings) -> RunSpec:
    """`spec` with DeepSpeed as its backend; `trainer` settings beside DeepSpeed's own."""
    chosen = {name: settings.pop(name) for name in tuple(settings) if name in DeepSpeedSpec.model_fields}
    trainer = spec.trainer.model_copy(update={"backend": "deepspeed", "deepspeed": DeepSpeedSpec(**chosen)} | settings)
    return spec.model_copy(update={"trainer": trainer})


@dataclass(frozen=True)
class Plan:
    """Steps `first` to `last` - 1 from the checkpoint in `out`, if `first` is not 0; a checkpoint after each."""

    model: str
    out: str
    first: int = 0
    last: int = 4
    rows: int = 8
    lora: bool = False
    critic: dict | None = None
    """Fields of a critic."""
    covariance_clip: dict | None = None
    """Fields of a clip of covariances, which every batch goes through before the learner has it."""
    kind: str = "rl"
    case: str = ""
    """One of `CASES`."""
    measured: bool = False
    """Whether each rank writes the memory that loading the model takes to `rank-<number>.memory`: most of all, and in the end, bytes."""
    settings: dict = field(default_factory=dict)


def checkpoint(out: Path, step: int) -> tuple[dict, dict]:
    """Weights and optimiser state."""
    return load_file(out / f"{step}.weights"), load_file(out / f"{step}.optimizer")


def _main() -> int:
    from gradbus_trainer.settings import Settings, TorchrunRank, end_with_launcher

    end_with_launcher()
    plan, torchrun, settings = Plan(**json.loads(sys.argv[1])), TorchrunRank.of(os.environ), Settings()
    (Path(plan.out) / f"rank-{torchrun.rank}.pid").write_text(str(os.getpid()))
    if plan.measured:
        _measure_loading(Path(plan.out) / f"rank-{torchrun.rank}.memory")
    if torchrun.rank:
        from gradbus_trainer.learners.deepspeed.follower import follow

        return follow(settings, torchrun)
    _lead(plan, settings, torchrun)
    return 0


def _measure_loading(file):
    from gradbus_trainer.learners.deepspeed.rank_policy import RankPolicy

    load = RankPolicy._load

    def measured(policy, folder):
        before, most, over = _held(), [0], threading.Event()

        def sample():
            while not over.wait(0.0005):
                most[0] = max(most[0], _held())

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            return load(policy, folder)
        finally:
            over.set()
            sampler.join()
            file.write_text(json.dumps({"most": most[0] - before, "end": _held() - before}))

    RankPolicy._load = measured


def _held():
    """Bytes of this process's own memory; mapped files do not count."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:"))


def _lead(plan, settings, torchrun):
    from gradbus_trainer.learners.registry import Learners

    out, learners = Path(plan.out), Learners(settings, torchrun)
    spec = LORA_SPEC if plan.lora else SPEC
    spec = spec if plan.critic is None else ppo_spec(spec, plan.critic)
    spec, rows_of = (spec, batch) if plan.kind == "rl" else (kind_spec(plan.kind), pair_batch)
    case = CASES.get(plan.case, Case())
    spec, rows_of = (case.spec(), case.batch) if plan.case else (spec, rows_of)
    learner = learners.open(Path(plan.model), deepspeed_spec(spec, **plan.settings))
    if plan.first:
        learner.restore(plan.first, *checkpoint(out, plan.first))
    clip = plan.covariance_clip and CovarianceClipSpec(**plan.covariance_clip)
    for step in range(plan.first, plan.last):
        given = without_covarying(Batch(step, rows_of(step).samples[: plan.rows]), clip, spec.seed).batch
        metrics = learner.train(given, case.coefficients(step))
        (out / f"{step + 1}.metrics").write_text(json.dumps(asdict(metrics)))
        save_file(dict(learner.weights()), out / f"{step + 1}.weights")
        save_file(dict(learner.optimizer_tensors()), out / f"{step + 1}.optimizer")
    learners.release()
    learners.close()


if __name__ == "__main__":
    sys.exit(_main())
