"""One sample, reply by reply: an aborted request leaves tokens, and the next request goes on from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from gradbus.errors import EngineError, ModelError
from gradbus.formats.tokens import pack_logprobs
from gradbus_rollout.engines.base import Completion, PromptGroup, TokenSpan
from gradbus_rollout.engines.sglang.config import SGLangConfig
from gradbus_rollout.engines.sglang.routes import SampleRoutes


class PartialSample:
    """The tokens so far of sample `n` of its group."""

    def __init__(self, group: PromptGroup, n: int, config: SGLangConfig) -> None:
        self._group = group
        self._seed = group.seeds[n]
        self._is_greedy = group.is_greedy(n)
        self._config = config
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[TokenSpan] = []
        self._routes: SampleRoutes | None = None
        if config.routes is not None and not self._is_greedy:
            # The first sample returns the prompt's for its group.
            self._routes = SampleRoutes(config.routes, len(group.prompt_ids) if n else 0)

    def request(self, request_id: str, cache_key: str, adapter: str | None = None) -> dict[str, Any]:
        """Body of the request for the rest. The server shares cached prefixes only among requests with the same `cache_key`."""
        return {
            "rid": request_id,
            "input_ids": [*self._group.prompt_ids, *self._ids],
            "sampling_params": self._sampling_params(),
            "return_logprob": True,
            "extra_key": cache_key,
            "lora_path": adapter,
        } | ({} if self._routes is None else self._routes.fields())

    def _sampling_params(self) -> dict[str, Any]:
        params: dict[str, Any] = {
            "max_new_tokens": (self._group.max_new_tokens or self._config.max_new_tokens) - len(self._ids),
            "temperature": self._config.temperature,
            "stop_token_ids": sorted(self._config.stop_token_ids),
            "sampling_seed": self._seed,  # read by a server in its deterministic mode only
        }
        # Only the likeliest token passes. With temperature 0 the log-probabilities would be those of another temperature.
        return params | ({"min_p": 1.0} if self._is_greedy else {})

    def take(self, reply: Mapping[str, Any], versions: Mapping[str, int]) -> Completion | None:
        """Appends a reply's tokens. Returns the sample when it is complete.

        `versions` maps the labels loaded to versions. Raises EngineError `wrong_version` for any other label, ModelError when
        the log-probabilities are not finite.
        """
        meta = reply["meta_info"]
        tokens = [(token, logprob) for logprob, token, *_ in meta.get("output_token_logprobs") or ()]
        if len(tokens) != meta["completion_tokens"]:
            raise EngineError(
                "refused", f"the server gave {len(tokens)} log-probabilities for {meta['completion_tokens']} tokens; report it"
            )
        spans = _spans(meta, len(tokens), len(self._ids), versions)
        if not all(logprob is not None and math.isfinite(logprob) for _, logprob in tokens):
            version = spans[-1].version
            advice = "lower trainer.learning_rate, or correct the model"
            raise ModelError(f"policy version {version} gives logits that are not finite; {advice}")
        self._ids += [token for token, _ in tokens]
        self._logprobs.extend(logprob for _, logprob in tokens)
        self._spans = _joined(self._spans, spans)
        if self._routes is not None:
            self._routes.take(meta, len(self._group.prompt_ids) + len(self._ids))
        kind = meta["finish_reason"]["type"]
        return self._completion(kind) if kind in {"stop", "length"} else None

    def _completion(self, finish: Literal["stop", "length"]) -> Completion:
        completion = Completion(tuple(self._ids), pack_logprobs(self._logprobs), tuple(self._spans), finish)
        if self._routes is not None:
            completion.prompt_routes, completion.routes = self._routes.parts(len(self._group.prompt_ids))
        return completion


def began_with(reply: Mapping[str, Any]) -> str:
    """Label of the weights that drew a reply's first token."""
    meta = reply["meta_info"]
    given = meta.get("weight_versions")
    return str(given[0]["version"] if given else meta["weight_version"])


def _spans(meta: Mapping[str, Any], length: int, offset: int, versions: Mapping[str, int]) -> list[TokenSpan]:
    """Spans of a reply's tokens, as the server gives them; the first token is the sample's token `offset`."""
    given = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": length}]
    unknown = {span["version"] for span in given} - versions.keys()
    if unknown:
        raise EngineError("wrong_version", f"the server sampled with weights {unknown} that were not loaded here; they are loaded again")
    return [
        TokenSpan(offset + span["start"], offset + span["end"], versions[span["version"]]) for span in given if span["end"] > span["start"]
    ]


def _joined(before: list[TokenSpan], after: list[TokenSpan]) -> list[TokenSpan]:
    """Joins two lists of spans; a version on both sides of the join becomes one span."""
    if before and after and before[-1].version == after[0].version:
        return [*before[:-1], TokenSpan(before[-1].start, after[0].end, after[0].version), *after[1:]]
    return [*before, *after]
