"""The requests for one sample, and what becomes of the replies."""

import numpy as np
import pytest

from gradbus.errors import EngineError, ModelError
from gradbus_rollout.engines.base import PromptGroup, TokenSpan
from gradbus_rollout.engines.sglang import SGLangConfig
from gradbus_rollout.engines.sglang.partial_sample import PartialSample, began_with

CONFIG = SGLangConfig(max_new_tokens=10, temperature=0.7, stop_token_ids=frozenset({9, 2}))
VERSIONS = {"4-aa": 4, "5-bb": 5}


def partial(n=0, greedy=0):
    return PartialSample(PromptGroup("a", (1, 2), (77, 78), greedy), n, CONFIG)


def reply(tokens, kind="stop", spans=(("4-aa", 0, None),), logprobs=None):
    logprobs = logprobs or [-0.1 * (number + 1) for number in range(len(tokens))]
    versions = [{"version": label, "start": start, "end": len(tokens) if end is None else end} for label, start, end in spans]
    meta = {"finish_reason": {"type": kind}, "completion_tokens": len(tokens), "weight_version": spans[-1][0]}
    return {
        "meta_info": meta
        | {"output_token_logprobs": [[lp, token, None] for lp, token in zip(logprobs, tokens, strict=True)]}
        | {"weight_versions": versions}
    }


def test_a_request_carries_ids_temperature_stops_and_the_seed():
    body = partial().request("r", "3")
    assert (body["rid"], body["input_ids"], body["extra_key"], body["return_logprob"]) == ("r", [1, 2], "3", True)
    assert body["sampling_params"] == {"max_new_tokens": 10, "temperature": 0.7, "stop_token_ids": [2, 9], "sampling_seed": 77}


def test_the_likeliest_token_is_asked_for_at_the_same_temperature():
    drawn, greedy = (partial(n, greedy=1).request("r", "3")["sampling_params"] for n in range(2))
    assert greedy.items() >= {"temperature": 0.7, "min_p": 1.0}.items()
    assert drawn == partial().request("r", "3")["sampling_params"]


def test_a_reply_becomes_a_completion_with_exact_float32_bytes():
    completion = partial().take(reply([5, 9]), VERSIONS)
    assert (completion.token_ids, completion.finish, completion.spans) == ((5, 9), "stop", (TokenSpan(0, 2, 4),))
    assert completion.logprobs == np.array([-0.1, -0.2], "<f4").tobytes()


def test_an_aborted_part_is_gone_on_from_and_keeps_its_versions():
    sample = partial()
    assert sample.take(reply([5, 6, 7], "abort"), VERSIONS) is None
    body = sample.request("r", "4")
    assert (body["input_ids"], body["sampling_params"]["max_new_tokens"]) == ([1, 2, 5, 6, 7], 7)
    completion = sample.take(reply([8, 3], "length", (("5-bb", 0, None),)), VERSIONS)
    assert completion.token_ids == (5, 6, 7, 8, 3)
    assert completion.spans == (TokenSpan(0, 3, 4), TokenSpan(3, 5, 5))
    assert len(completion.logprobs) == 20


def test_a_part_aborted_before_its_first_token_leaves_no_span():
    sample = partial()
    meta = {"finish_reason": {"type": "abort"}, "completion_tokens": 0, "weight_version": "4-aa"}
    assert sample.take({"meta_info": meta}, VERSIONS) is None
    assert sample.take(reply([5], spans=(("5-bb", 0, None),)), VERSIONS).spans == (TokenSpan(0, 1, 5),)


def test_spans_of_a_swap_in_flight_are_the_servers_and_a_version_that_goes_on_is_one_span():
    sample = partial()
    sample.take(reply([5, 6], "abort"), VERSIONS)
    completion = sample.take(reply([7, 8, 9], spans=(("4-aa", 0, 1), ("5-bb", 1, 3))), VERSIONS)
    assert completion.spans == (TokenSpan(0, 3, 4), TokenSpan(3, 5, 5))


@pytest.mark.parametrize("label", ["default", "gradbus-unproven", "4-cc"])
def test_weights_that_were_not_loaded_here_are_reported(label):
    with pytest.raises(EngineError, match="not loaded here") as caught:
        partial().take(reply([5], spans=((label, 0, None),)), VERSIONS)
    assert caught.value.state == "wrong_version"


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf")])
def test_log_probabilities_that_are_not_finite_are_the_models_fault(bad):
    with pytest.raises(ModelError, match="policy version 4 gives logits that are not finite"):
        partial().take(reply([5, 6], logprobs=[-1.0, bad]), VERSIONS)


def test_a_reply_without_its_log_probabilities_is_refused():
    answer = reply([5, 6])
    answer["meta_info"]["completion_tokens"] = 3
    with pytest.raises(EngineError, match="2 log-probabilities for 3 tokens"):
        partial().take(answer, VERSIONS)


def test_a_reply_tells_the_weights_of_its_first_token():
    assert began_with(reply([5, 6], spans=(("4-aa", 0, 1), ("5-bb", 1, 2)))) == "4-aa"
    assert began_with({"meta_info": {"weight_version": "5-bb"}}) == "5-bb"
