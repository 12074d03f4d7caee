"""A reward without exactly one source, and fields of it that do not go together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import urlsplit

from gradbus.errors import Fault
from gradbus.spec.reward.graders import CodeGrader, MultiGrader, PythonGrader, SimpleGrader
from gradbus.spec.reward.protocols import HTTP, OWN, PROTOCOLS, ServiceProtocol, split_service
from gradbus.spec.reward.section import RewardSpec, ScorerSpec


def reward_faults(reward: RewardSpec) -> Iterator[Fault]:
    """Faults of a section that is valid field by field."""
    given = [name for name in ("grader", "service", "model") if getattr(reward, name) is not None]
    if len(given) != 1:
        shown = " and ".join(given) or "none of them"
        yield Fault("reward", "a reward has exactly one source", shown, "exactly one of `grader`, `service` and `model`")
    if reward.shadow and reward.model is not None:
        message = "the reference service computes a reward model, and the reward service its shadows"
        yield Fault("reward.shadow", message, "a model and shadows", "shadows beside a grader or a service")
    if reward.cache and reward.model is not None:
        yield Fault("reward.cache", "answers of a reward model are not kept", "true", "false")
    yield from _change_faults(reward)
    for path, scorer in reward.scorers.items():
        if path != "reward" and (scorer.grader is None) == (scorer.service is None):
            what = "a shadow" if path.startswith("reward.shadow.") else "a change"
            yield Fault(path, f"{what} has exactly one source", allowed="exactly one of `grader` and `service`")
        yield from _service_faults(scorer, path)
        yield from _scorers_grader_faults(scorer, f"{path}.grader", reward.timeout_seconds)


def _change_faults(reward: RewardSpec) -> Iterator[Fault]:
    if reward.changes and reward.model is not None:
        message = "the reference service computes a reward model as long as the run lasts"
        yield Fault("reward.changes", message, "a model and changes", "changes of a grader or a service")
    for n, (before, after) in enumerate(pairwise(reward.changes), start=1):
        if after.from_group <= before.from_group:
            message = "changes stand in the order of their groups"
            yield Fault(f"reward.changes.{n}.from_group", message, str(after.from_group), f"more than {before.from_group}")


def _scorers_grader_faults(scorer: ScorerSpec, path: str, timeout_seconds: float) -> Iterator[Fault]:
    if scorer.grader is None:
        return
    if not isinstance(scorer.grader, MultiGrader):
        yield from _grader_faults(scorer.grader, path, timeout_seconds)
        return
    for name, part in scorer.grader.graders.items():
        yield from _grader_faults(part, f"{path}.graders.{name}", timeout_seconds)


def _grader_faults(grader: SimpleGrader, path: str, timeout_seconds: float) -> Iterator[Fault]:
    if isinstance(grader, PythonGrader):
        yield from _python_faults(grader, path)
    if not isinstance(grader, CodeGrader):
        return
    if (grader.style == "call") != (grader.function is not None):
        message = 'only tests of style = "call" call a function, and they need its name'
        yield Fault(f"{path}.function", message, json.dumps(grader.function), 'a name with style = "call", none with another style')
    least = 4 * grader.seconds + 1
    if timeout_seconds < least:
        message = f"one test may take {least:g} s by the clock, for a busy machine is not the program's fault"
        yield Fault("reward.timeout_seconds", message, f"{timeout_seconds:g}", f"at least {least:g}, or fewer seconds a test")


def _python_faults(grader: PythonGrader, path: str) -> Iterator[Fault]:
    if grader.source is None and grader.module is None:
        allowed = "`source`; or `file`, which the command line replaces by its text; or `module`"
        yield Fault(path, "a python grader needs its source", "no `source`", allowed)
    elif grader.source is not None and grader.module is not None:
        yield Fault(f"{path}.module", "a function is in a source or in a module", grader.module, "`source` or `module`")
    if grader.module is not None and grader.function is not None:
        yield Fault(f"{path}.function", "a module's function is named in `module`", grader.function, "none; write module:function")
    if grader.interface == "gradbus" and grader.label != PythonGrader.model_fields["label"].default:
        yield Fault(f"{path}.label", "grade(sample, item) reads the row itself", json.dumps(grader.label), "none, or another `interface`")


def _service_faults(reward: ScorerSpec, path: str) -> Iterator[Fault]:
    """Faults of the address, and of fields that its protocol does not read or lacks."""
    protocol, url = split_service(reward.service or "")
    known = PROTOCOLS.get(protocol, ServiceProtocol())
    if reward.service is not None and not _is_address(url, OWN if not protocol else HTTP):
        message = "not the address of a scorer"
        allowed = f"grpc://host:port or http(s)://host:port/path; {', '.join(f'{name}+' for name in PROTOCOLS)} may stand before http(s)"
        yield Fault(f"{path}.service", message, json.dumps(reward.service)[:80], allowed)
    elif known.paths and not urlsplit(url).path.endswith(known.paths):
        yield Fault(
            f"{path}.service", f"{protocol} has no such path for rewards", url[:80], f"a path that ends in {' or '.join(known.paths)}"
        )
    for field in ("label", "reward_key", "served_model", "label_token_ids"):
        given = getattr(reward, field)
        if field not in known.reads and given != ScorerSpec.model_fields[field].default:
            readers = ", ".join(f"{name}+" for name, one in PROTOCOLS.items() if field in one.reads)
            yield Fault(f"{path}.{field}", "this reward does not read it", json.dumps(given), f"none, or a service with {readers}")
    if protocol == "vllm" and reward.served_model is None:
        yield Fault(f"{path}.served_model", "vLLM answers only for the model that is named", "none", "the name that the server serves")
    is_score = protocol == "sglang" and urlsplit(url).path.endswith("/score")
    if is_score != bool(reward.label_token_ids) and protocol == "sglang":
        message = "SGLang's /score, and no other path, compares the probabilities of tokens"
        yield Fault(f"{path}.label_token_ids", message, json.dumps(reward.label_token_ids), "token ids with /score, none with /classify")


def _is_address(url: str, schemes: tuple[str, ...]) -> bool:
    return url.startswith(schemes) and url.isprintable() and " " not in url
