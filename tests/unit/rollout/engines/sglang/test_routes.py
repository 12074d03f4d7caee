"""The routes of a sample: what its requests ask for, and what its replies give."""

import base64

import numpy as np
import pytest

from gradbus.errors import EngineError
from gradbus_rollout.engines.base import PromptGroup, RouteShape
from gradbus_rollout.engines.sglang import SGLangConfig
from gradbus_rollout.engines.sglang.partial_sample import PartialSample

VERSIONS = {"4": 4}
PROMPT = (1, 2, 3)
SHAPE = RouteShape(layers=(1, 3), all_layers=4, experts=256, chosen=2)


def partial(n=0, shape=SHAPE, **changes):
    return PartialSample(PromptGroup("a", PROMPT, (77, 78), **changes), n, SGLangConfig(max_new_tokens=10, routes=shape))


def rows(first, end, shape=SHAPE):
    """Those of the tokens from `first` to `end`: expert 10 · token + layer, then the next one; zeros in layers without experts."""
    found = np.zeros((end - first, shape.all_layers, shape.chosen), "<i4")
    for layer in shape.layers:
        found[:, layer] = 10 * np.arange(first, end)[:, None] + layer + np.arange(shape.chosen)
    return found


def reply(tokens, routes=None, kind="stop"):
    meta = {"finish_reason": {"type": kind}, "completion_tokens": len(tokens), "weight_version": "4"}
    meta["output_token_logprobs"] = [[-0.5, token, None] for token in tokens]
    if routes is not None:
        meta["routed_experts"] = base64.b64encode(routes.tobytes()).decode()
    return {"meta_info": meta}


def start(sample):
    body = sample.request("r", "4")
    assert body["return_routed_experts"] is True
    return body["routed_experts_start_len"]


def compact(first, end, shape=SHAPE, dtype=np.uint8):
    return rows(first, end, shape)[:, list(shape.layers)].astype(dtype).tobytes()


def test_the_first_sample_of_a_group_returns_the_prompts_routes():
    first, second = partial(0), partial(1)
    assert (start(first), start(second)) == (0, 3)
    done = first.take(reply([5, 6, 7], rows(0, 5)), VERSIONS)
    assert (done.prompt_routes, done.routes) == (compact(0, 3), compact(3, 5))
    done = second.take(reply([5, 6, 7], rows(3, 5)), VERSIONS)
    assert (done.prompt_routes, done.routes) == (b"", compact(3, 5))


def test_a_token_takes_a_quarter_of_the_servers_bytes():
    shape = RouteShape((0, 1, 2), 3, 128, 2)
    done = partial(shape=shape).take(reply([5, 6], rows(0, 4, shape)), VERSIONS)
    assert len(done.prompt_routes + done.routes) * 4 == rows(0, 4, shape).nbytes


def test_more_than_256_experts_take_two_bytes():
    shape = RouteShape(layers=(0,), all_layers=1, experts=257, chosen=2)
    routes = np.full((3, 1, 2), 256, "<i4")
    done = partial(shape=shape).take(reply([5], routes), VERSIONS)
    assert done.prompt_routes == routes.astype("<u2").tobytes()


def test_the_parts_of_an_interrupted_sample_keep_their_routes():
    sample = partial()
    assert sample.take(reply([5, 6], rows(0, 4), "abort"), VERSIONS) is None
    assert start(sample) == 4  # the last token was not computed: the next request does
    assert sample.take(reply([], None, "abort"), VERSIONS) is None  # aborted while it waited
    assert start(sample) == 4
    later = rows(4, 7) + (rows(4, 7) > 0)  # by other weights
    done = sample.take(reply([7, 8, 9], later), VERSIONS)
    assert done.prompt_routes == compact(0, 3)
    assert done.routes == compact(3, 4) + later[:, list(SHAPE.layers)].astype(np.uint8).tobytes()


def test_rows_that_are_missing_leave_a_shorter_sample_and_rows_too_many_are_cut_off():
    short = partial().take(reply([5, 6, 7], rows(0, 2)), VERSIONS)
    assert (short.prompt_routes, short.routes) == (compact(0, 2), b"")
    stripped = partial().take(reply([5, 6, 7]), VERSIONS)
    assert (stripped.prompt_routes, stripped.routes) == (b"", b"")
    long = partial().take(reply([5], rows(0, 5)), VERSIONS)
    assert (long.prompt_routes, long.routes) == (compact(0, 3), b"")


def test_after_a_loss_no_row_is_taken():
    lost = partial()
    assert lost.take(reply([5, 6, 7], rows(0, 3), "abort"), VERSIONS) is None
    done = lost.take(reply([8], rows(3, 6)), VERSIONS)  # tokens 3 and 4 were computed again
    assert (done.prompt_routes, done.routes) == (compact(0, 3), b"")


def test_the_routes_of_a_sample_that_the_server_retracted_are_not_taken():
    retracted = reply([5, 6, 7], rows(0, 5))
    retracted["meta_info"]["num_retractions"] = 1
    done = partial().take(retracted, VERSIONS)
    assert (done.prompt_routes, done.routes) == (b"", b"")


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (np.zeros((3, 4, 3), "<i4"), r"not int32 \[tokens, 4, 2\]"),
        (np.full((3, 4, 2), 256, "<i4"), "name experts 256 to 256 of 256"),
        (np.full((3, 4, 2), -1, "<i4"), "name experts -1 to -1 of 256"),
    ],
)
def test_routes_of_another_model_are_refused(routes, message):
    with pytest.raises(EngineError, match=message):
        partial().take(reply([5], routes), VERSIONS)


def test_nothing_is_asked_for_without_replay_or_for_an_evaluation():
    assert "return_routed_experts" not in partial(shape=None).request("r", "4")
    assert "return_routed_experts" not in partial(greedy=2).request("r", "4")
    assert ["return_routed_experts" in partial(n, greedy=1).request("r", "4") for n in range(2)] == [True, False]
