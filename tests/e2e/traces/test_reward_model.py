"""The traces of a run that a reward model scores."""


def test_a_call_for_scores_goes_on_in_the_service_that_holds_the_reward_model(traced, collector, spec, reward_model):
    run = traced.train(spec(reward={"model": {"path": str(reward_model)}}))

    def answered():
        spans = collector.of_run(run["id"])
        calls = {span.trace for span in spans if span.name == "score_call"}
        served = {span.trace for span in spans if span.service == "gradbus-reference" and span.name == "gradbus.v1.RewardService/Score"}
        return calls == served and calls

    assert collector.until(answered)
    spans = collector.of_run(run["id"])
    scored = {span.trace for span in spans if span.name == "score"}
    assert len(scored) == 3 * 4
    assert {link for span in spans if span.name == "score_call" for link in span.links} == scored
    assert "gradbus-reward" not in {span.service for span in spans}
