"""Trainer and engine on one device: in turns, with the same weights at the end as side by side."""

import pytest


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_run_in_turns_ends_in_the_weights_of_the_undisturbed_run(lab, spec, staleness):
    settings = {"schedule": {"max_staleness": staleness, "steps": 4}}
    apart = lab.train(spec(**settings), seconds=60)
    timed = lab.train(spec(**settings, rollout={"placement": "timed"}), seconds=60)
    assert lab.final_digest(timed) == lab.final_digest(apart)
    assert lab.learned(timed)
    assert all(step["seconds"]["switch"] > 0 for step in lab.events(timed["id"], "metrics"))
    assert not any("switch" in step["seconds"] for step in lab.events(apart["id"], "metrics"))
