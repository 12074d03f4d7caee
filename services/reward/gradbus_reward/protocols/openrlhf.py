"""OpenRLHF's remote reward model (`--reward.remote_url`, `openrlhf.cli.serve_rm`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradbus.graders import ScoreResult
from gradbus_reward.protocols.base import PeerCall, Row, Sample, by_place, components, malformed


class OpenRlhf:
    """One POST of `query`, `prompts` and `labels` for all samples; `rewards` come back in their order."""

    def __init__(self, label: str) -> None:
        """`label`: column of the reference answer."""
        self._label = label

    def calls(self, samples: Sequence[Sample], row: Row) -> Iterator[PeerCall]:
        """One call."""
        yield PeerCall(
            samples,
            {
                "query": [sample.prompt + sample.response for sample in samples],
                "prompts": [sample.prompt for sample in samples],
                "labels": [row(sample).get(self._label) for sample in samples],
            },
        )

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """`rewards`, with `scores` and the lists of `extra_logs` as components."""
        if not isinstance(document, dict):
            return malformed(call, "is no object")
        # A reward model's tensor of one column becomes lists of one number.
        rewards = document.get("rewards")
        results = by_place(call, [_only(one) for one in rewards] if isinstance(rewards, list) else rewards, "rewards")
        extra = document.get("extra_logs")
        lists = {"scores": document.get("scores"), **(extra if isinstance(extra, Mapping) else {})}
        logs = {name: values for name, values in lists.items() if isinstance(values, list) and len(values) == len(call.samples)}
        return [
            replace(result, components=components({name: _only(values[n]) for name, values in logs.items()}))
            if result.status == "ok"
            else result
            for n, result in enumerate(results)
        ]


def _only(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
