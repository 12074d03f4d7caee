"""Given responses: labels in place of advantages, and what each kind of run needs and reports."""

from typing import get_args

import pytest

from gradbus.algorithms import algorithm_of
from gradbus.spec import Kind, parse_spec
from gradbus.v1.sample_pb2 import Sample

GIVEN = get_args(Kind)[1:]


def algorithm(kind):
    body = {"name": "given", "kind": kind, "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 1}}
    return algorithm_of(parse_spec(body))


@pytest.mark.parametrize("kind", sorted({*GIVEN} - {"kto"}))
def test_the_first_response_is_to_become_likelier_and_a_second_one_less_likely(kind):
    samples = [Sample(sample_id="7.0", n=0), Sample(sample_id="7.1", n=1)]
    found = algorithm(kind).group_advantages(samples, {})
    assert (found.advantages, found.valid, found.filtered) == ((1.0, -1.0), (True, True), False)
    only = algorithm(kind).group_advantages(samples[:1], {})
    assert (only.advantages, only.valid, only.filtered) == ((1.0,), (True,), False)


def test_a_labelled_response_moves_as_its_label_says_and_a_mismatched_one_does_not():
    other = Sample(sample_id="7.1", n=1)
    for undesirable, label in ((False, 1.0), (True, -1.0)):
        found = algorithm("kto").group_advantages([Sample(sample_id="7.0", n=0, undesirable=undesirable), other], {})
        assert (found.advantages, found.valid, found.filtered) == ((label, 0.0), (True, True), False)


@pytest.mark.parametrize("kind", GIVEN)
def test_nothing_is_judged_and_only_losses_with_a_reference_ask_for_one(kind):
    found = algorithm(kind)
    assert not found.is_sampled
    assert not found.is_scored
    assert not found.needs_critic
    assert found.needs_reference == (kind in {"dpo", "ipo", "kto"})


def test_each_kind_reports_the_metrics_of_its_loss():
    names = {kind: set(algorithm(kind).metric_names) for kind in GIVEN}
    assert names["sft"] == {"entropy"}
    assert names["dpo"] == names["ipo"] == names["simpo"] == names["orpo"] == {"accuracy", "margin", "chosen_logprob", "rejected_logprob"}
    assert names["kto"] == {"kl", "margin", "desirable_logratio", "undesirable_logratio"}
    assert names["reward_model"] == {"accuracy", "margin", "chosen_score", "rejected_score"}
