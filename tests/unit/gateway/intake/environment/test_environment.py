"""`[environment]` at submission: its source is parsed, and an episode must fit every model that reads it."""

import pytest

from gradbus.errors import SpecError
from gradbus.objects import ObjectStore
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings

SOURCE = "class Environment:\n    def reset(self, item, seed):\n        pass\n"


@pytest.fixture
def faults(tmp_path, write_model, fork_server):
    """The faults of a spec with an environment, as text."""
    write_model(tmp_path / "roots" / "model")
    (tmp_path / "roots" / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache")

    async def submit(environment, **changes):
        body = {
            "name": "sums",
            "model": {"path": "model"},
            "data": {"train": "train.jsonl"},
            "environment": environment,
            "rollout": {"max_new_tokens": 8, "group_size": 4},
            "schedule": {"steps": 4, "groups_per_step": 2},
        }
        try:
            await SpecIntake(ObjectStore.open(f"file://{tmp_path}/objects"), fork_server, settings, None).accept(body | changes, "key")
        except SpecError as error:
            return [str(fault) for fault in error.faults]
        return []

    return submit


async def test_a_run_needs_no_scorer_beside_its_environment(faults):
    assert await faults({"source": SOURCE}) == []
    assert await faults({"agent": "pull"}) == await faults({"agent": "http://agents:9000/play"}) == []
    for address in ("http://env:9000/x", "openenv+ws://env:9000", "nemo-gym+http://env:9000"):
        assert await faults({"service": address}) == []


async def test_tools_of_an_mcp_server_give_no_rewards_so_a_run_needs_a_scorer(faults):
    grader = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
    assert await faults({"service": "mcp+https://env/mcp"}, reward={"grader": grader}) == []
    [fault] = await faults({"service": "mcp+http://env:9000/mcp"})
    assert fault.startswith("reward: an MCP server gives no rewards")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"source": "def ("}, "environment.source: not Python"),
        ({"source": "x = 1"}, "environment.source: no `Environment` at the top level"),
        ({}, "environment: an environment has exactly one source"),
        ({"source": SOURCE, "service": "http://env:1/x"}, "environment: an environment has exactly one source"),
        ({"file": "world.py"}, "environment.file: the command line replaces a file by its text"),
        ({"service": "ftp://env/x"}, "environment.service: not the address of an environment"),
        ({"source": SOURCE, "agent": "pull"}, "environment: an environment has exactly one source"),
        ({"agent": "push"}, "environment.agent: not the address of an agent"),
        ({"service": "mcp+pipe://env"}, "environment.service: not the address of an environment"),
        ({"source": SOURCE, "max_tokens": 7}, "environment.max_tokens: an episode has room for its first turn"),
        ({"source": SOURCE, "max_turn": 7}, "did you mean"),
    ],
)
async def test_a_fault_is_named_at_submission(faults, environment, said):
    found = await faults(environment)
    assert len(found) == 1
    assert said in found[0]


async def test_what_cannot_be_beside_an_environment_is_refused(faults):
    assert any(
        fault.startswith("environment: advantage = distill reads no rewards")
        for fault in await faults({"source": SOURCE}, algorithm={"name": "opd"}, teacher={"path": "model"})
    )
    assert any(
        fault.startswith("environment: a run of kind sft samples nothing")
        for fault in await faults({"source": SOURCE}, kind="sft", data={"train": "train.jsonl", "completion": "answer"})
    )


async def test_what_an_agent_does_is_deterministic_by_its_record_alone(faults):
    assert await faults({"agent": "pull"}, deterministic=True) == []
    assert await faults({"agent": "pull", "journal": False}, deterministic=False) == []
    [fault] = await faults({"agent": "pull", "journal": False}, deterministic=True)
    assert fault.startswith("environment.journal: what an agent does is no function of the spec")


async def test_a_sample_is_as_long_as_all_its_turns(faults):
    rollout = {"max_new_tokens": 8, "group_size": 1024}
    assert await faults({"source": SOURCE, "max_turns": 2}, rollout=rollout) == []
    [fault] = await faults({"source": SOURCE, "max_turns": 1024}, rollout=rollout)
    assert "group_size · max_new_tokens · max_turns, or environment.max_tokens, is too large" in fault
    assert await faults({"source": SOURCE, "max_turns": 1024, "max_tokens": 64}, rollout=rollout) == []
