"""Reward models that SGLang or vLLM serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from gradbus.graders import ScoreResult
from gradbus_reward.protocols.base import PeerCall, Row, Sample, by_index, malformed, number


class SglangClassify:
    """SGLang's own `/classify` (a server with `--is-embedding`): the raw score of prompt and response."""

    def __init__(self, model: str) -> None:
        self._model = model

    def calls(self, samples: Sequence[Sample], _row: Row) -> Iterator[PeerCall]:
        """One call."""
        yield PeerCall(samples, {"model": self._model, "text": [sample.prompt + sample.response for sample in samples]})

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """`embedding`, which has one number, by place."""
        entries = document if isinstance(document, list) else [document]
        if len(entries) != len(call.samples):
            return malformed(call, f"has {len(entries)} results for {len(call.samples)} samples, and no way to tell which are missing")
        return [_only_score(entry.get("embedding") if isinstance(entry, dict) else None, "embedding") for entry in entries]


class SglangScore:
    """SGLang's `/v1/score`: the probability of the first of some tokens after prompt and response."""

    def __init__(self, model: str, label_token_ids: Sequence[int]) -> None:
        """`label_token_ids`: the tokens that share the probability; the first one's is the reward."""
        self._model = model
        self._labels = list(label_token_ids)

    def calls(self, samples: Sequence[Sample], _row: Row) -> Iterator[PeerCall]:
        """One call a prompt, of samples that follow each other."""
        for prompt, group in groupby(samples, key=lambda sample: sample.prompt):
            same = tuple(group)
            body = {"query": prompt, "items": [sample.response for sample in same], "label_token_ids": self._labels}
            yield PeerCall(same, {"model": self._model, **body, "apply_softmax": True, "item_first": False})

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """`scores` by place."""
        scores = document.get("scores") if isinstance(document, dict) else None
        if not isinstance(scores, list) or len(scores) != len(call.samples):
            return malformed(call, f"has no list `scores` of {len(call.samples)} results")
        return [number(one[0], "scores") if isinstance(one, list) and one else number(one or None, "scores") for one in scores]


class VllmClassify:
    """vLLM's `/classify` without an activation, read as verl reads it: the score of the last label."""

    def __init__(self, model: str) -> None:
        self._model = model

    def calls(self, samples: Sequence[Sample], _row: Row) -> Iterator[PeerCall]:
        """One call."""
        texts = [sample.prompt + sample.response for sample in samples]
        yield PeerCall(samples, {"model": self._model, "input": texts, "use_activation": False})

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """The last of `probs`, by `index`."""
        return by_index(call, document.get("data") if isinstance(document, dict) else None, _last_of_probs)


class VllmScore:
    """vLLM's `/score`: of each prompt with its response."""

    def __init__(self, model: str) -> None:
        self._model = model

    def calls(self, samples: Sequence[Sample], _row: Row) -> Iterator[PeerCall]:
        """One call."""
        prompts, responses = [sample.prompt for sample in samples], [sample.response for sample in samples]
        yield PeerCall(samples, {"model": self._model, "text_1": prompts, "text_2": responses})

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """`score`, by `index`."""
        entries = document.get("data") if isinstance(document, dict) else None
        return by_index(call, entries, lambda entry: number(entry.get("score"), "score"))


def _last_of_probs(entry: Mapping[str, Any]) -> ScoreResult:
    probs = entry.get("probs")
    return number(probs[-1] if isinstance(probs, list) and probs else probs, "probs")


def _only_score(values: object, name: str) -> ScoreResult:
    if isinstance(values, list) and len(values) == 1:
        return number(values[0], name)
    reason = f"the server's {name} is not one number; serve a reward model with one label, with --is-embedding"
    return ScoreResult.error(reason, permanent=True)
