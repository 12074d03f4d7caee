"""Classes as TRL's `environment_factory` takes them: the examples of its documentation, and what differs from ours."""

import json

import grpc
import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
INCREMENT = '''
import random

class IncrementEnv:
    # Reserved methods
    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = random.randint(1, 6)
        return f"Increment the counter by {self.target}."

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    # Public methods (exposed as tools)
    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter

Environment = IncrementEnv
'''
ECHO = '''
class Environment:
    def __init__(self):
        self.reward = 0.0

    def reset(self, target, **kwargs) -> str | None:
        self.reward = 0.0
        self.target = target
        self.columns = kwargs

    def echo(self, message: str) -> str:
        """
        Echo the message back.

        Args:
            message: The message to echo
        """
        if message == "over":
            raise ValueError("Game over.")
        self.reward = len(message) * self.target
        return message

    def step(self, way: str) -> list:
        """A tool like any other."""
        return sorted(self.columns)
'''


def said(answer):
    return [(one.role, one.content) for one in answer.messages]


async def test_the_example_of_its_documentation(episode):
    world = episode(INCREMENT, run_id="increment")
    [tool] = (await world.describe()).tools
    step = {"type": "integer", "description": "Value to add to the counter."}
    assert (tool.name, tool.description) == ("increment", "Increment the internal counter.")
    assert json.loads(tool.parameters_json)["properties"] == {"step": step}
    [(role, task)] = said(await world.open())
    target = int(task.removeprefix("Increment the counter by ").rstrip("."))
    added = await world.step(0, "", ("increment", {"step": target}))
    assert (role, said(added), added.HasField("reward")) == ("user", [("tool", str(target))], False)
    last = await world.step(1, "Done.")
    assert (last.status, last.reward, list(last.messages)) == (OK, 1.0, [])
    await world.open("train.0.0.1")
    assert (await world.step(0, "Done.")).reward == 0.0
    twin = episode(INCREMENT, run_id="increment")
    assert said(await twin.open("train.0.0.2")) == [("user", task)], "a group's episodes have one task"


async def test_columns_come_by_name_and_the_reward_may_be_an_attribute(episode):
    world = episode(ECHO, run_id="echo", item={"prompt": [{"role": "user", "content": "Echo."}], "target": 2, "level": 1})
    assert [one.name for one in (await world.describe()).tools] == ["echo", "step"]
    assert list((await world.open()).messages) == []
    answer = await world.step(0, "", ("echo", {"message": "hello"}), ("echo", {"message": "over"}), ("step", {"way": "up"}))
    assert (answer.messages[0].content, answer.messages[2].content) == ("hello", '["level","prompt"]')
    assert "Game over." in answer.messages[1].content
    last = await world.step(1, "Done.", end_reason="max_turns")
    assert (last.status, last.reward) == (OK, 10.0)


PROMPTS = [
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Play. "}], [("system", "Be brief."), ("user", "Play. Go.")]),
    ("Play. ", [("user", "Play. Go.")]),
    (None, [("user", "Go.")]),
]


@pytest.mark.parametrize(("prompt", "found"), PROMPTS)
async def test_what_reset_says_is_the_end_of_the_prompt(episode, prompt, found):
    source = "class Environment:\n    def reset(self, **kwargs):\n        return 'Go.'\n"
    world = episode(source, run_id="prompt", item={} if prompt is None else {"prompt": prompt})
    assert said(await world.open(f"train.{len(found)}.0.{len(found[0])}", attempt=PROMPTS.index((prompt, found)))) == found


async def test_a_class_without_a_reward_gives_none(episode):
    world = episode("class Environment:\n    def reset(self, **kwargs):\n        pass\n", run_id="none")
    await world.open()
    answer = await world.step(0, "Done.")
    assert (answer.status, answer.HasField("reward")) == (OK, False)


@pytest.mark.parametrize("reward", ["float('nan')", "'1'", "1e9", "True and [1]"])
async def test_a_reward_that_is_none_is_invalid(episode, reward):
    source = f"class Environment:\n    def reset(self, **kwargs):\n        pass\n    def get_reward(self):\n        return {reward}\n"
    world = episode(source, run_id=f"bad {reward}")
    await world.open()
    answer = await world.step(0, "Done.")
    assert (answer.status, answer.HasField("reward"), bool(answer.reason)) == (INVALID, False, True)


async def test_a_column_that_reset_misses_is_a_fault_of_the_item(episode):
    found = []
    for attempt in range(2):
        opened = await episode(ECHO, run_id="missing", item={"prompt": "x"}).open(attempt=attempt)
        found.append(opened.status)
        assert "reset() raised" in opened.reason
    assert found == [ERROR, INVALID]


async def test_a_tool_that_is_asynchronous_is_refused(episode):
    source = 'class Environment:\n    def reset(self, **kwargs):\n        pass\n    async def act(self):\n        """Acts."""\n'
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await episode(source, run_id="async").describe()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
