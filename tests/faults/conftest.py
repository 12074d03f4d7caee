"""Stacks for fault tests, each with its own state folder, and the hash that every one of them must end in."""

import pytest
from smoke import make_example, smoke_spec, train

from gradbus.embedded import Stack, StackConfig


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def stack_of(tmp_path):
    """A stack with so many rollouts, in a state folder of its own."""

    def make(rollouts=1, **overrides):
        return Stack(StackConfig(state=tmp_path / f"state-{rollouts}", port=0, rollouts=rollouts, **overrides))

    return make


@pytest.fixture(scope="session")
def spec(example):
    return smoke_spec(example)


@pytest.fixture(scope="session")
def true_digest(tmp_path_factory, spec):
    """The weights of a run without any fault, by one rollout."""
    import asyncio

    async def run():
        async with Stack(StackConfig(state=tmp_path_factory.mktemp("state"), port=0)) as stack:
            outcome = await train(stack, spec)
        assert outcome.state == "succeeded"
        return outcome.digest

    return asyncio.run(run())
