"""A taskset and a harness of verifiers, and their server: `python verifiers_world.py tcp://127.0.0.1:PORT`, by the Python of verifiers.

Two turns: the policy is asked for a word, and for another one. The word "star" is an item that fails in their task, and "moon" one whose
tool server is away.
"""

import sys

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.errors import ToolsetError
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes.base import ProgramResult
from verifiers.v1.serve import serve_env
from verifiers.v1.task import Task, TaskData
from verifiers.v1.taskset import Taskset
from verifiers.v1.utils.decorators import reward
from verifiers.v1.utils.loaders import resolve_env_config

__all__ = ["LoopHarness", "WordTaskset"]


class WordData(TaskData):
    word: str


class WordTask(Task[WordData]):
    async def setup(self, trace, runtime):
        if self.data.word == "star":
            raise ValueError("nobody can judge a star")

    @reward
    async def letters(self, trace) -> float:
        return len(set(trace.last_reply or "")) / 64


class WordTaskset(Taskset[WordTask]):
    def load(self):
        for word in ("sun", "moon", "star", "sky"):
            yield WordTask(WordData(prompt=f"Say {word}.", word=word))


class LoopHarnessConfig(HarnessConfig):
    pass


class LoopHarness(Harness[LoopHarnessConfig]):
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt_text}]
        if data.prompt_text == "Say moon.":
            raise ToolsetError("the dictionary is away")
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            for following in ("And another one.", ""):
                body = {"model": ctx.model, "messages": messages}
                answer = await client.post(f"{endpoint}/chat/completions", json=body, headers={"authorization": f"Bearer {secret}"})
                if answer.status_code != 200:
                    return ProgramResult(1, "", answer.text)
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": following}]
        return ProgramResult(0, "", "")


if __name__ == "__main__":
    config = {"taskset": {"id": "verifiers_world"}, "agent": {"harness": {"id": "verifiers_world"}}}
    serve_env(max_workers=1, address=sys.argv[1], config=resolve_env_config(config))
