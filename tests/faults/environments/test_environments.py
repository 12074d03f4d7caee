"""A run with an environment: whoever dies at a point of an episode, weights, episodes and rewards are those of an undisturbed run."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from .holds import POINTS, Calm, held_stack, holds_of, played

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

VICTIMS = ("rollout-0", "environment", "conductor", "buffer", "nats", "reward", "trainer-0")
EACH_POINT = ("environment", "rollout-0", "environment", "reward", "conductor", "buffer", "trainer-0")
"""The victims at `POINTS` in the short test."""
SHORT, LONG = 12, 40


@pytest.fixture(scope="session")
def calm(tmp_path_factory, looking_up):
    return Calm(tmp_path_factory.mktemp("calm"), looking_up)


async def test_a_death_at_each_point_of_an_episode_changes_neither_weights_nor_episodes(stack_of, looking_up, tmp_path):
    async with held_stack(stack_of, tmp_path / "holds", holds_of(EACH_POINT, 0)) as stack:
        disturbed = await played(stack, looking_up(SHORT))
        assert disturbed == await played(stack, looking_up(SHORT)), "the second run is undisturbed, for each point is held once"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("victim", VICTIMS)
async def test_whoever_dies_at_all_points_changes_neither_weights_nor_episodes(stack_of, looking_up, calm, tmp_path, victim, seed):
    """With one, two and three rollout workers; if one dies, it is alone, for else the others end the run before it has died everywhere."""
    rollouts, holds = 1 if victim == "rollout-0" else 1 + seed, holds_of((victim,) * len(POINTS), seed)
    async with held_stack(stack_of, tmp_path / "holds", holds, rollouts) as stack:
        assert await played(stack, looking_up(LONG)) == await calm.of(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
async def test_whoever_dies_at_all_points_of_recorded_episodes_changes_nothing_either(stack_of, looking_up, calm, tmp_path, victim):
    spec = looking_up(LONG)
    spec["environment"]["journal"] = True
    async with held_stack(stack_of, tmp_path / "holds", holds_of((victim,) * len(POINTS), 3)) as stack:
        assert await played(stack, spec) == await calm.of(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
async def test_whoever_dies_while_a_call_is_answered_changes_nothing(stack_of, looking_up, calm, tmp_path, victim):
    """The environment service stands still with what a call says, and has told nobody."""
    holds = [f"step-done:{passes}:{victim}" for passes in (30, 45, 60)]
    async with held_stack(stack_of, tmp_path / "holds", holds, service="environment") as stack:
        assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)


@asynccontextmanager
async def another_environment(stack, ports):
    """A second environment service beside the stack's own, and the process."""
    program = stack._programs.service("environment")
    places = {"GRADBUS_LISTEN": f"127.0.0.1:{ports[0]}", "GRADBUS_HEALTH": f"127.0.0.1:{ports[1]}"}
    process = await asyncio.create_subprocess_exec(*program.command, env={**program.environment, **places})
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("rollouts", [1, 2, 3])
async def test_no_number_of_rollouts_and_environment_services_changes_a_bit(stack_of, looking_up, calm, rollouts, free_port):
    ports = free_port(), free_port()
    async with stack_of(rollouts) as stack:
        assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)
        stack.config.environment_overrides["rollout-0"] = {"GRADBUS_ENVIRONMENT_ADDRESS": f"127.0.0.1:{ports[0]}"}
        await stack.kill("rollout-0")
        async with another_environment(stack, ports) as process:
            assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)
            assert process.returncode is None
