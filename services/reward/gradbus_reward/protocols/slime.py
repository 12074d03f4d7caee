"""slime's remote reward model (`--rm-type remote_rm --rm-url`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradbus.graders import ScoreResult
from gradbus_reward.protocols.base import PeerCall, Row, Sample, components, malformed, number


class Slime:
    """One POST of `prompt`, `response` and `label` for each sample; the answer is the reward, or an object that has it."""

    def __init__(self, label: str, reward_key: str | None) -> None:
        """`label`: column of the reference answer. `reward_key`: the reward's name in the answer, as slime's `--reward-key`."""
        self._label = label
        self._key = reward_key

    def calls(self, samples: Sequence[Sample], row: Row) -> Iterator[PeerCall]:
        """One call a sample."""
        for sample in samples:
            yield PeerCall((sample,), {"prompt": sample.prompt, "response": sample.response, "label": row(sample).get(self._label)})

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """The answer itself, or its `reward_key`, with its other numbers as components."""
        if self._key is None:
            if isinstance(document, dict):
                return malformed(call, "is an object; name the reward in it by reward.reward_key")
            return [number(document, "answer")]
        if not isinstance(document, dict) or self._key not in document:
            return malformed(call, f"has no field {self._key!r}")
        result = number(document[self._key], self._key)
        others = components({name: value for name, value in document.items() if name != self._key})
        return [ScoreResult(result.reward, others) if result.status == "ok" else result]
