"""A whole run needs only the permissions of the table: NATS logs every refusal."""

import re


def test_a_run_asks_for_nothing_that_it_is_refused(lab, spec, stack_state):
    """A run with a KL penalty, so that the reference service takes part."""
    run = lab.train(spec(algorithm={"kl": 0.1}))
    assert lab.learned(run)
    lab.client.versions_page(run["id"])
    lab.samples(run["id"])
    assert lab.events(run["id"], "metrics")
    refused = re.findall(r".*(?:Publish|Subscription) Violation.*", (stack_state / "logs" / "nats.log").read_text())
    assert refused == []
