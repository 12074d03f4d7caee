"""Two environments on OpenEnv's own package: `python openenv_server.py plain|mcp PORT`."""

import random
import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """A guess at the number."""

    guess: int


class Sign(Observation):
    sign: str = ""


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        self.number = random.Random(seed).randrange(100)
        return Sign(sign="?", reward=0.0)

    def step(self, action, timeout_s=None, **_):
        if action.guess == 13:
            raise RuntimeError("an unlucky number")
        sign = (action.guess > self.number) - (action.guess < self.number)
        return Sign(sign="<=>"[sign + 1], done=sign == 0, reward=1.0 if sign == 0 else -0.1)

    @property
    def state(self):
        return State()


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("tools")

        @mcp.tool
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        @mcp.tool
        def fail(text: str) -> str:
            """Fails."""
            raise ValueError(text)

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, **_):
        return Observation(reward=0.0)

    def _step_impl(self, action, timeout_s=None, **_):
        return Observation(reward=0.0)

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    kinds = {"plain": (Guessing, Guess, Sign), "mcp": (Tools, CallToolAction, CallToolObservation)}
    application = create_app(*kinds[sys.argv[1]], env_name=sys.argv[1], max_concurrent_envs=8)
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
