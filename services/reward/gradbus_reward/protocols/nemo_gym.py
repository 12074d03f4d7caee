"""NeMo Gym's resources servers: `/verify` of a single answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gradbus.graders import ScoreResult
from gradbus_reward.protocols.base import PeerCall, Row, Sample, components, malformed, number

_MAX_SHOWN: Final = 400


class NemoGym:
    """One POST for each sample: its row, with the answer as a response of OpenAI's Responses API."""

    def calls(self, samples: Sequence[Sample], row: Row) -> Iterator[PeerCall]:
        """One call a sample."""
        for sample in samples:
            item = row(sample)
            parameters = item.get("responses_create_params") or {"input": [{"role": "user", "content": sample.prompt}]}
            yield PeerCall((sample,), {**item, "responses_create_params": parameters, "response": _response(sample)})

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """`reward`, unless the server masks the sample or says that it failed itself."""
        if not isinstance(document, dict):
            return malformed(call, "is no object")
        reason = str(document.get("failure_reason") or document.get("failure_kind") or "")[:_MAX_SHOWN]
        if document.get("mask_sample") is True:
            return [ScoreResult.invalid(f"the server masks the sample: {reason or 'it gives no reason'}")]
        if document.get("failure_kind"):
            return [ScoreResult.error(f"the server failed: {reason}")]
        if "reward" not in document:
            return malformed(call, "has no field `reward`")
        result, parts = number(document["reward"], "reward"), document.get("reward_components")
        is_whole = result.status == "ok" and isinstance(parts, dict)
        return [ScoreResult(result.reward, components(parts)) if is_whole and isinstance(parts, dict) else result]


def _response(sample: Sample) -> dict[str, Any]:
    is_cut = sample.finish_reason == "length"
    text = {"type": "output_text", "text": sample.response, "annotations": []}
    return {
        "id": f"resp_{sample.sample_id}",
        "created_at": 0,
        "model": "policy",
        "object": "response",
        "output": [{"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [text]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "status": "incomplete" if is_cut else "completed",
    }
