"""Episodes that are played again: which ones, and what becomes of a world that is no function of its seed."""

import itertools

import pytest

from gradbus.v1 import environment_service_pb2 as pb
from gradbus_environment.contract import Opening
from gradbus_environment.repeats import is_repeated

OK, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_ERROR
SOURCE = """
import random, time

class Environment:
    def reset(self, item, seed):
        self.drawn = random.random()

    def look(self) -> str:
        \"\"\"Looks.\"\"\"
        return repr({expression})

    def reward(self, text):
        return self.drawn
"""
UNSEEDED = ["time.time_ns()", "random.SystemRandom().random()", "id(object())", "[*{object() for _ in range(9)}]"]


def names(run_id):
    """Episodes by whether they are played again."""
    numbered = (f"train.0.{index}.0" for index in itertools.count())
    return {again: next(name for name in numbered if is_repeated(Opening(run_id, name, 0, "{}", 0)) == again) for again in (False, True)}


def test_one_of_a_hundred_is_repeated_and_all_attempts_of_it():
    chosen = [n for n in range(10_000) if is_repeated(Opening("run", f"train.0.{n}.0", 0, "{}", n))]
    assert 60 < len(chosen) < 140
    assert all(is_repeated(Opening("run", f"train.0.{n}.0", 2, "{}", 0, "player")) for n in chosen)


def test_nearly_every_run_has_a_repeated_episode_among_its_first_five_hundred():
    missed = [
        run
        for run in range(300)
        if not any(is_repeated(Opening(f"run {run}", f"train.0.{n // 8}.{n % 8}", 0, "{}", n)) for n in range(500))
    ]
    assert len(missed) <= 300 / 50, "0.99 to the power of 500 is 0.7 %"


async def played(world, name):
    assert (await world.open(name)).status == OK
    assert (await world.step(0, "", ("look", {}))).status == OK
    return await world.step(1, "done", end_reason="max_turns")


@pytest.mark.parametrize("expression", UNSEEDED)
async def test_a_world_that_is_no_function_of_its_seed_is_an_error(episode, expression):
    world = episode(SOURCE.replace("{expression}", expression), run_id="unseeded")
    named = names("unseeded")
    assert (await played(world, named[False])).status == OK
    world.session = ""
    last = await played(world, named[True])
    assert (last.status, last.reason.startswith("nondeterministic: turn 0 had another answer")) == (ERROR, True), last
    again = await world.step(1, "done", end_reason="max_turns")
    assert again.reason == last.reason, "to ask again changes nothing"


async def test_a_seeded_world_has_its_reward(episode):
    world = episode(SOURCE.replace("{expression}", "self.drawn"), run_id="seeded")
    last = await played(world, names("seeded")[True])
    assert (last.status, last.HasField("reward")) == (OK, True), last


@pytest.mark.parametrize("is_seeded", [True, False])
async def test_a_server_that_calls_itself_seeded_is_asked_in_a_new_session(episode, serve_json, guessing_world, is_seeded):
    if not is_seeded:
        results = itertools.count()
        guessing_world.result = lambda number, call: str(next(results))
    world = episode({"service": serve_json(guessing_world)}, run_id=f"server {is_seeded}")
    await world.describe()
    await world.open(names(world.run_id)[True])
    await world.step(0, "", ("reveal", {}))
    last = await world.step(1, "give up", end_reason="max_turns")
    assert (last.status == OK) is is_seeded, last
    assert len([path for _, path, _ in guessing_world.asked if path == "/open"]) == 2
