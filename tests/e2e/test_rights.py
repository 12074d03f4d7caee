"""A whole run needs no right that the table does not give: NATS writes down whatever it refuses."""

import re


def test_a_run_asks_for_nothing_that_it_is_refused(lab, spec, stack_state):
    """With a penalty, so that the reference takes part too."""
    run = lab.train(spec(algorithm={"kl": 0.1}))
    assert lab.learned(run)
    lab.client.versions(run["id"])
    lab.samples(run["id"])
    assert lab.events(run["id"], "metrics")
    refused = re.findall(r".*(?:Publish|Subscription) Violation.*", (stack_state / "logs" / "nats.log").read_text())
    assert refused == []
