"""Fields of a spec: values beyond their bounds, and the largest and smallest that are allowed, alone and together."""

from __future__ import annotations

from typing import Final

from gradbus_hostile.material import Json, Material, good_rows
from gradbus_hostile.table.conduct import cancel_while_all_groups_are_late
from gradbus_hostile.table.submission import ANY, CANCELLED, FAILED, HARMLESS, REFUSED_OR_FAILED, Submission, spec

_ALL_TOKENS: Final = list(range(300))
_DIGEST: Final = "sha256:" + "0" * 64


def _without_time(material: Material) -> Json:
    return material.spec(deterministic=False, schedule={"mode": "free", "group_deadline_seconds": 1e-9})


def _evaluated(material: Material) -> Json:
    """Evaluates 1,000 rows at every step, as long as the context allows, and checkpoints as often."""
    body = material.rows(good_rows(1000), evaluation={"every": 1, "samples": 100_000}, rollout={"max_new_tokens": 40})
    return body | {"data": {**body["data"], "eval": body["data"]["train"]}, "checkpoint": {"every": 1, "keep": 100}}


SPECS: Final = (
    spec("2^62 steps", schedule={"steps": 2**62}),
    spec("a batch of 2^40 samples", schedule={"groups_per_step": 2**40}),
    spec(
        "the largest of each size", schedule={"groups_per_step": 65536, "max_staleness": 64, "steps": 10**7}, rollout={"group_size": 1024}
    ),
    spec("a rank above the hidden size", trainer={"lora": {"rank": 1024}}),
    spec("adapters as strong as can be", ANY, trainer={"lora": {"rank": 1, "alpha": 1e6}, "learning_rate": 10.0}),
    spec("a learning rate of 1e300", trainer={"learning_rate": 1e300}),
    spec("a learning rate of 10 without a bound", ANY, trainer={"learning_rate": 10.0, "max_grad_norm": 1e12}),
    spec("a learning rate of 1e-300", ANY, trainer={"learning_rate": 1e-300}),
    spec("a temperature of 1e-300", rollout={"temperature": 1e-300}),
    spec("a temperature of 0.01", ANY, rollout={"temperature": 0.01}),
    spec("a temperature of 10", HARMLESS, rollout={"temperature": 10.0}),
    spec("a penalty of 1,000", ANY, algorithm={"kl": 1000.0, "entropy": 1000.0}, trainer={"learning_rate": 1.0}),
    spec("a clip of 1e9", ANY, algorithm={"clip": [0.999999, 1e9]}),
    spec("no algorithm of ours", algorithm={"name": "grpo2"}),
    spec("a preset that is a list", algorithm={"name": ["grpo"]}),
    spec("a trust region that is an object", algorithm={"trust_region": {"type": "clip"}}),
    spec("a critic that nothing reads", trainer={"critic": {}}),
    spec("a critic that learns at a rate of 10", ANY, algorithm={"name": "ppo"}, trainer={"critic": {"learning_rate": 10.0}}),
    spec("a warm-up beyond the last step", algorithm={"name": "ppo"}, trainer={"critic": {"warmup_steps": 10**7}}),
    spec("a penalty of 1,000 for long answers", HARMLESS, algorithm={"name": "dapo", "overlong_penalty": 1000.0, "overlong_buffer": 1.0}),
    spec("one sample a prompt without a baseline", HARMLESS, rollout={"group_size": 1}, algorithm={"name": "reinforce_pp"}),
    spec("one sample a prompt and a baseline", rollout={"group_size": 1}),
    spec("a micro batch of one token", HARMLESS, trainer={"micro_batch_tokens": 1}),
    spec("256 threads", HARMLESS | FAILED, trainer={"threads": 256}, rollout={"threads": 256}),
    spec("1,024 slots", HARMLESS, rollout={"slots": 1024}),
    spec("a group of 1,024", HARMLESS, rollout={"group_size": 1024}, schedule={"groups_per_step": 1}),
    spec("prompts of 2^24 tokens", rollout={"max_prompt_tokens": 1 << 24}),
    spec("every token stops", ANY, rollout={"stop_token_ids": _ALL_TOKENS}),
    spec("one token stops a thousand times", HARMLESS, rollout={"stop_token_ids": [1] * 1024}),
    spec("a stop text of 10,000 letters", rollout={"stop": ["x" * 10_000]}),
    spec("the largest seed", HARMLESS, seed=2**63 - 1),
    spec("a seed beyond the largest", seed=2**63),
    Submission("spec: an evaluation of 1,000 rows at every step", _evaluated, HARMLESS),
    spec("a metric of nobody", evaluation={"metric": "evil"}),
    Submission("spec: no time for a group", _without_time, ANY | CANCELLED, cancel_while_all_groups_are_late),
    spec("a staleness of 64", HARMLESS, deterministic=False, schedule={"mode": "free", "max_staleness": 64}),
    spec("a free schedule that is deterministic", deterministic=True, schedule={"mode": "free"}),
    spec(
        "many options at once",
        HARMLESS,
        deterministic=False,
        schedule={"mode": "free", "max_staleness": 3},
        algorithm={"kl": 0.1, "importance": "decoupled", "aggregate": "sequence", "filter": "none"},
        trainer={"lora": {"rank": 2}, "lr_schedule": "cosine", "warmup_steps": 10**7},
        weights={"transport": "broadcast", "dtype": "bf16"},
        checkpoint={"every": 1, "keep": 1},
    ),
    spec("deltas with the fewest anchors", HARMLESS, weights={"transport": "delta", "anchor_every": 64}, checkpoint={"every": 1}),
    spec("a name that is a path", name="../../etc/passwd"),
    spec("a name with a line's end", name="evil\n"),
    spec("a name in wide letters", name="\uff45\uff56\uff49\uff4c"),
    spec("a name of other letters that look the same", name="g\u0440ad"),
    spec("a name of a thousand letters", name="a" * 1000),
    spec("a million stop tokens", rollout={"stop_token_ids": list(range(100_000))}),
    spec("a negative stop token", rollout={"stop_token_ids": [-1, 2**70]}),
    spec("betas of infinity", trainer={"betas": [1e308, 5]}),
    spec("a clip below zero", algorithm={"clip": [-5.0, -7.0]}),
    spec("fields of nobody", **{f"evil{n}": n for n in range(1000)}),
    spec("numbers as text", ANY, seed="7", schedule={"steps": "2"}),
    spec("a path out of the roots", model={"path": "/proc/self"}),
    spec("a model whose files are not stored", model={"path": "evil", "files": {"config.json": _DIGEST}}),
    spec("a model whose file leads out", model={"path": "evil", "files": {"../../../etc/passwd": _DIGEST}}),
    spec("the model of a run of nobody", model={"run": "evil", "version": 2**52}),
    spec("the model of a run that is a path", model={"run": "../../etc/passwd"}),
    spec("the model of every run", model={"run": "*"}),
    spec("the model of a run and of a folder", model={"run": "well-behaved", "path": "evil", "files": {"config.json": _DIGEST}}),
    spec("the model of a run with other files", model={"run": "well-behaved", "files": {"config.json": _DIGEST}}),
    spec("the model of another user's run", ANY, model={"run": "well-behaved", "version": "last"}),
    spec("a prompt column that is an attribute", data={"prompt": "__class__"}),
    spec("a file of the system as data", data={"train": "file:///etc/shadow"}),
    spec("a hub id with a path as its revision", model={"path": "evil/model", "revision": "../../../../etc"}),
    spec("a scorer at the metadata service", reward={"service": "http://169.254.169.254/latest/meta-data"}),
    spec("a scorer at the metadata service, in IPv6", reward={"service": "grpc://[::ffff:169.254.169.254]:80"}),
    spec("a scorer without a host", reward={"service": "http://"}),
    spec("a scorer with a password", reward={"service": "http://evil:evil@127.0.0.1:9/"}),
    spec("two sources of rewards", reward={"service": "grpc://127.0.0.1:9", "grader": {"type": "python", "source": "grade = len"}}),
    spec(
        "a grader that takes no arguments", REFUSED_OR_FAILED, reward={"grader": {"type": "python", "source": "def grade(): return 1.0\n"}}
    ),
)
