"""From a request's body to a stored run: everything checked before anything is promised, all faults in one answer."""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gradbus.control.runs import RunRecord
from gradbus.errors import Fault, SpecError
from gradbus.graders import check_grader
from gradbus.ids import new_run_id
from gradbus.spec import (
    DataSpec,
    EvaluationSpec,
    Grader,
    ModelSpec,
    MultiGrader,
    PythonGrader,
    RewardSpec,
    RolloutSpec,
    RunSpec,
    parse_spec,
)
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.intake.data import DataIntake, TakenData
from gradbus_gateway.intake.model import ModelIntake, TakenModel
from gradbus_gateway.intake.reward_address import address_faults
from gradbus_gateway.run_store import Reservation, Run
from gradbus_gateway.settings import GatewaySettings
from gradbus_gateway.state import Gateway

Section = TypeVar("Section", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Request:
    """A submission."""

    body: object
    key_id: str
    idempotency_key: str | None


def parse_body(data: bytes, content_type: str) -> object:
    """The body as JSON, or as TOML if its type says so. Raises the problem 400."""
    kind, parse = ("TOML", _toml) if content_type.startswith("application/toml") else ("JSON", json.loads)
    try:
        return parse(data)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, "unreadable-body", f"the body is not {kind} ({error}); send a run spec as a {kind} document") from None


async def submit(gateway: Gateway, request: Request) -> Run:
    """The run of this request. Raises SpecError with every fault; the problem 422 for an idempotency key used otherwise before."""
    body = hashlib.sha256(json.dumps(request.body, sort_keys=True, default=str).encode()).hexdigest()
    key = hashlib.sha256(f"{request.key_id}\n{request.idempotency_key}".encode()).hexdigest()
    try:
        spec = await accepted_spec(gateway, request.body)
    except SpecError:
        # What a repeated request names may be gone since: it is answered with its run all the same.
        if request.idempotency_key is not None and (earlier := await gateway.runs.reservation(key)):
            run = await gateway.runs.find(_same(earlier, body).run_id)
            if run:
                return run
        raise
    wish = Reservation(body, new_run_id())
    if request.idempotency_key is not None:
        # Two requests at once, or one cut off before its run was stored: all end in the run of the first reservation.
        wish = _same(await gateway.runs.reserve(key, wish), body)
    record = RunRecord(run_id=wish.run_id, spec=spec, created_unix_ns=time.time_ns(), key_id=request.key_id)
    return await gateway.runs.create(record)


def _same(reserved: Reservation, body: str) -> Reservation:
    if reserved.body != body:
        detail = "this Idempotency-Key came with another body before; use a new key for a new run"
        raise ProblemError(422, "idempotency-key-reused", detail)
    return reserved


async def accepted_spec(gateway: Gateway, body: object) -> RunSpec:
    """The spec with every digest filled in. Raises SpecError with the faults of the spec, its model, its data and its reward."""
    body = _with_operators_scorer(body, gateway.settings.reward_service)
    faults: list[Fault] = []
    spec: RunSpec | None = None
    try:
        spec = parse_spec(body)
    except SpecError as error:
        faults.extend(error.faults)
    sections: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    model, data = None, None
    if wanted := spec.model if spec else _sound(ModelSpec, sections.get("model")):
        model, found = await ModelIntake(gateway.objects, gateway.settings, gateway.models).take(wanted)
        faults.extend(found)
    if source := spec.data if spec else _sound(DataSpec, sections.get("data")):
        data, found = await DataIntake(gateway.objects, gateway.settings, gateway.datasets).take(source)
        faults.extend(found)
    if reward := spec.reward if spec else _sound(RewardSpec, sections.get("reward")):
        faults.extend(_reward_faults(reward, data, gateway.settings))
    faults.extend(_fit_faults(model, data, spec.rollout if spec else _sound(RolloutSpec, sections.get("rollout", {}))))
    if model and spec:
        faults.extend(model.info.family.faults(spec.numerics, spec.trainer.lora))
    if evaluation := spec.evaluation if spec else _sound(EvaluationSpec, sections.get("evaluation", {})):
        faults.extend(_evaluation_faults(evaluation, source, reward))
    if faults or spec is None or model is None or data is None:
        raise SpecError(faults)
    return spec.model_copy(update={"model": model.spec, "data": data.spec})


def _with_operators_scorer(body: object, service: str) -> object:
    """The body whose reward is the operator's scorer, so that the stored spec says who judges; the run's deadline stays."""
    if not service or not isinstance(body, Mapping):
        return body
    given = body.get("reward")
    kept = {name: value for name, value in given.items() if name not in {"grader", "service"}} if isinstance(given, Mapping) else {}
    return {**body, "reward": {**kept, "service": service}}


def _sound(kind: type[Section], value: object) -> Section | None:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None  # the parser of the whole spec has listed its faults


def _reward_faults(reward: RewardSpec, data: TakenData | None, settings: GatewaySettings) -> Iterator[Fault]:
    if reward.service not in {None, settings.reward_service}:
        yield from address_faults(reward.service, settings)
    if reward.grader is None:
        return
    if data is not None:
        yield from check_grader(reward.grader, data.columns)
    parts = reward.grader.graders.values() if isinstance(reward.grader, MultiGrader) else [reward.grader]
    if not settings.python_graders and any(isinstance(part, PythonGrader) for part in parts):
        allowed = "string_check, text_similarity, a service of your own; or the operator sets GRADBUS_PYTHON_GRADERS"
        yield Fault("reward.grader", "python graders are off on this server", "python", allowed)


def _fit_faults(model: TakenModel | None, data: TakenData | None, rollout: RolloutSpec | None) -> Iterator[Fault]:
    """Faults of parts that are sound alone and do not go together."""
    if model and data and data.chat and not model.has_chat_template:
        message = "prompts are chat messages, but the model's tokenizer has no chat template"
        yield Fault("data.prompt", message, allowed="text prompts, or a model with chat_template.jinja")
    if model and rollout:
        room = model.info.context_length - rollout.max_new_tokens - (rollout.max_prompt_tokens or 1)
        if room < 0:
            given = f"{rollout.max_new_tokens} + {rollout.max_prompt_tokens or 1} for the prompt"
            yield Fault("rollout.max_new_tokens", "prompt and response do not fit the model", given, f"{model.info.context_length} in all")


def _evaluation_faults(evaluation: EvaluationSpec, data: DataSpec | None, reward: RewardSpec | None) -> Iterator[Fault]:
    if data and data.eval is None and evaluation != EvaluationSpec():
        yield Fault("data.eval", "an evaluation needs held-out rows", "no `eval`", "a JSON Lines file, or a spec without [evaluation]")
    if reward:
        yield from _metric_faults(reward.grader, evaluation.metric)


def _metric_faults(grader: Grader | None, metric: str) -> Iterator[Fault]:
    """What a service or Python source will name is not known yet; what the other graders name is."""
    parts = grader.graders if isinstance(grader, MultiGrader) else {}
    part, is_inner, _ = metric.partition(".")
    unknown = grader is None or isinstance(grader, PythonGrader) or (is_inner and isinstance(parts.get(part), PythonGrader))
    if metric != "reward" and metric not in parts and not unknown:
        yield Fault("evaluation.metric", "no part of the grader has this name", metric, ", ".join(["reward", *parts]))


def _toml(data: bytes) -> object:
    return tomllib.loads(data.decode())
