"""Faults of a spec that need more than the spec: the stored data and model, the server's settings, or two sections at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gradbus.errors import Fault
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.tokens import route_bytes
from gradbus.formats.transformers_families import TransformersFamily
from gradbus.graders import check_grader, source_faults
from gradbus.spec import (
    DataSpec,
    EnvironmentSpec,
    EvaluationSpec,
    Grader,
    LoraSpec,
    MultiGrader,
    PythonGrader,
    RewardSpec,
    RolloutSpec,
    RunSpec,
    ScoreModelGrader,
    TrainerSpec,
    split_service,
)
from gradbus_gateway.intake.data import StoredData
from gradbus_gateway.intake.model.intake import StoredModel
from gradbus_gateway.intake.spec.service_address import AllowedHosts, address_faults
from gradbus_gateway.settings import GatewaySettings

_MAX_GROUP_BYTES: Final = 16 << 20
"""Rows of one group's samples in a call; beside them it has the prompts, which are part of the rows, and the responses."""

_COLUMNS_SHOWN: Final = 20
_MAX_ROUTES_BYTES: Final = 64 << 20
"""Routes of one group, an eighth of the largest value that the buffer takes."""


def reward_faults(reward: RewardSpec, data: StoredData | None, settings: GatewaySettings) -> Iterator[Fault]:
    """Faults of the scorers' addresses, of graders for the columns of `data`, and of code that the server does not run."""
    for path, scorer in reward.scorers.items():
        if scorer.service is not None and scorer.service != settings.reward_service:
            yield from address_faults(split_service(scorer.service)[1], AllowedHosts.of_rewards(settings), f"{path}.service")
        if data is not None and scorer.reads_label and scorer.label not in data.columns:
            known = ", ".join(sorted(data.columns)[:_COLUMNS_SHOWN])
            yield Fault(f"{path}.label", "not a column that every row has", scorer.label, known)
        if scorer.grader is not None:
            if data is not None:
                yield from check_grader(scorer.grader, data.columns, f"{path}.grader")
            yield from _allowance_faults(scorer.grader, settings, f"{path}.grader")


def _allowance_faults(grader: Grader, settings: GatewaySettings, path: str) -> Iterator[Fault]:
    """What the operator does not allow a grader."""
    parts = list(grader.graders.values()) if isinstance(grader, MultiGrader) else [grader]
    for part in parts:
        if isinstance(part, ScoreModelGrader):
            yield from address_faults(part.url, AllowedHosts.of_rewards(settings), path)
    for name in [part.module.partition(":")[0] for part in parts if isinstance(part, PythonGrader) and part.module is not None]:
        if name not in settings.reward_modules:
            known = ", ".join(settings.reward_modules) or "none yet"
            yield Fault(path, "the operator allows no functions of this module (GRADBUS_REWARD_MODULES)", name, known)
    if not settings.python_graders and (off := [part.type for part in parts if part.runs_users_code]):
        allowed = "other graders, a service of your own; or the operator sets GRADBUS_PYTHON_GRADERS"
        yield Fault(path, "graders of type python and code are off on this server", off[0], allowed)


def queue_faults(queue: str, queues: Sequence[str]) -> Iterator[Fault]:
    """A queue that the operator does not name has no trainers: a run would wait in it for ever."""
    if queue not in queues:
        yield Fault("queue", "there is no such queue on this server (GRADBUS_QUEUES)", queue, ", ".join(queues))


def environment_faults(environment: EnvironmentSpec | None) -> Iterator[Fault]:
    """Faults of the environment's source as far as they are seen without running it. Its service checks addresses."""
    if environment is not None and environment.source is not None:
        yield from source_faults(environment.source, "environment.source", "Environment", "class Environment: ...")


def fit_faults(model: StoredModel | None, data: StoredData | None, rollout: RolloutSpec | None) -> Iterator[Fault]:
    """Faults of sections that are valid alone and do not fit together."""
    if model and data and data.chat and not model.has_chat_template:
        message = "prompts are chat messages, but the model's tokenizer has no chat template"
        yield Fault("data.prompt", message, allowed="text prompts, or a model with chat_template.jinja")
    if model and rollout:
        room = model.info.context_length - rollout.max_new_tokens - (rollout.max_prompt_tokens or 1)
        if room < 0:
            given = f"{rollout.max_new_tokens} + {rollout.max_prompt_tokens or 1} for the prompt"
            yield Fault("rollout.max_new_tokens", "prompt and response do not fit the model", given, f"{model.info.context_length} in all")
        unknown = [token for token in rollout.stop_token_ids if token >= model.info.vocab_size]
        if unknown:
            given = ", ".join(map(str, unknown[:3]))
            yield Fault("rollout.stop_token_ids", "the model has no such tokens", given, f"ids below {model.info.vocab_size}")
    if data and rollout and rollout.group_size * data.longest_row > _MAX_GROUP_BYTES:
        message = "the samples of a group, each with its row, do not fit into a call of the scorer"
        shown = f"{rollout.group_size} samples of a row of {data.longest_row} bytes"
        yield Fault("data.train", message, shown, f"at most {_MAX_GROUP_BYTES} bytes in all; shorter rows or a smaller group_size")


def server_faults(model: StoredModel, rollout: RolloutSpec) -> Iterator[Fault]:
    """Faults of samples so long that SGLang would not compute them as the trainer does, or of a model that it never does."""
    if model.config is None or rollout.traits.embedded:
        return
    served, architecture = model.config.served_tokens, model.info.family.architecture
    if not served:
        message = f"it leaves out the biases of {architecture}'s feed-forward part, which the trainer computes"
        yield Fault("rollout.engine", message, rollout.engine, "a model without `mlp_bias`")
        return
    longest = rollout.max_prompt_tokens or model.info.context_length - rollout.max_new_tokens
    if longest + rollout.max_new_tokens > served:
        message = f"beyond {served} tokens SGLang leaves out what the trainer computes for {architecture}: its window or growing queries"
        allowed = f"at most {served} with rollout.max_new_tokens"
        yield Fault("rollout.max_prompt_tokens", message, f"{longest} + {rollout.max_new_tokens}", allowed)


def decoder_faults(model: StoredModel, rollout: RolloutSpec | None, numerics: str) -> Iterator[Fault]:
    """Faults of features of the model that the embedded engine, or `batch_invariant`, does not compute for any family."""
    if model.config is None:
        return
    if rollout is not None and rollout.traits.embedded and model.config.engine_lacks:
        message = f"this engine runs in the worker's process and does not compute {', '.join(model.config.engine_lacks)}"
        yield Fault("rollout.engine", message, rollout.engine, "an engine that is a server, or a model without")
    if numerics == "batch_invariant" and model.config.invariant_lacks:
        yield Fault("numerics", f"is not computed for a model with {', '.join(model.config.invariant_lacks)}", numerics, "fast")


def backend_faults(model: StoredModel, trainer: TrainerSpec) -> Iterator[Fault]:
    """A fault of a backend that does not train the model's family."""
    if isinstance(model.info.family, TransformersFamily) and trainer.backend != "torch":
        message = f"does not train {model.info.family.architecture}, which transformers computes"
        yield Fault("trainer.backend", message, trainer.backend, "torch")


def replay_faults(model: StoredModel, rollout: RolloutSpec) -> Iterator[Fault]:
    """Faults of a routing replay in a model without experts of the trainer's own, or with more routes than a group may have."""
    if not rollout.routing_replay:
        return
    path, experts = "rollout.routing_replay", model.config.experts if model.config else None
    if experts is None:
        message = f"{model.info.family.architecture} has no experts that Gradbus's own decoder computes, so there are no routes to replay"
        able = ", ".join(family.architecture for family in MODEL_FAMILIES.values() if family.experts)
        yield Fault(path, message, "true", f"false, or a model of one of: {able}")
        return
    token = route_bytes(len(experts.layers), experts.count, experts.chosen)
    prompt = rollout.max_prompt_tokens or model.info.context_length - rollout.max_new_tokens
    size = token * (max(0, prompt) + rollout.group_size * rollout.max_new_tokens)
    if size > _MAX_ROUTES_BYTES:
        given = f"{size} bytes: {token} for each token of a prompt and of {rollout.group_size} responses"
        allowed = f"at most {_MAX_ROUTES_BYTES} bytes; lower rollout.group_size, max_new_tokens or max_prompt_tokens"
        yield Fault(path, "the routes of a group do not fit into the buffer", given, allowed)


def lora_faults(model: StoredModel, lora: LoraSpec | None) -> Iterator[Fault]:
    """Faults of adapters that are larger than the matrices beside which they are trained."""
    if model.config is None or lora is None:
        return
    hidden = model.config.hidden_size
    if lora.rank > hidden:
        yield Fault("trainer.lora.rank", "an adapter is smaller than its matrix", str(lora.rank), f"at most {hidden}, the hidden size")


def critic_faults(model: StoredModel, spec: RunSpec) -> Iterator[Fault]:
    """Faults of a critic whose adapters the model's family does not take, or that are larger than their matrices."""
    if (critic := spec.trainer.critic) is None or (adapters := critic.adapters) is None:
        return
    for fault in model.info.family.faults(None, "fast", adapters):
        yield Fault("trainer.critic.kind", fault.message, '"lora"', '"full" or "head"')
    for fault in lora_faults(model, adapters):
        yield replace(fault, path="trainer.critic.rank")


def evaluation_faults(evaluation: EvaluationSpec, data: DataSpec | None, reward: RewardSpec | None) -> Iterator[Fault]:
    """Faults of an evaluation without held-out rows, or by a metric that the grader does not have."""
    if data and data.eval is None and evaluation != EvaluationSpec():
        yield Fault("data.eval", "an evaluation needs held-out rows", "no `eval`", "a JSON Lines file, or a spec without [evaluation]")
    for section in reward.in_turn if reward else ():
        yield from _metric_faults(section, evaluation.metric)


def _metric_faults(reward: RewardSpec, metric: str) -> Iterator[Fault]:
    """The components of a service or of Python source are not known before it runs; those of others are, and a reward model has none."""
    grader = reward.grader
    parts = grader.graders if isinstance(grader, MultiGrader) else {}
    part, is_inner, _ = metric.partition(".")
    is_python = isinstance(grader, PythonGrader) or (is_inner and isinstance(parts.get(part), PythonGrader))
    unknown = is_python or (grader is None and reward.model is None)
    if metric != "reward" and metric not in parts and not unknown:
        yield Fault("evaluation.metric", "no part of the reward has this name", metric, ", ".join(["reward", *parts]))
