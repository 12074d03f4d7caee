"""An agent that talks by the SDKs of OpenAI and Anthropic: it compacts every five turns, and has three sub-agents at a time."""

import asyncio
import contextlib
import json
import uuid
from dataclasses import dataclass, field

import httpx2
from guessing_agent import ClaimingAgent
from lazy_import import lazy_import

openai, anthropic = lazy_import("openai"), lazy_import("anthropic")

RETRIES = 9
TURNS, COMPACTION, SUB_AGENTS = 7, 5, 3


@dataclass
class Told:
    """A turn as an SDK gave it."""

    turn: int
    count: int
    text: str
    ids: tuple[int, ...] | None = None


class Chat:
    """Chat completions: by the synchronous client, by the asynchronous one, and as a stream."""

    def __init__(self, offer, mode):
        self.model, self.mode = offer["model"], mode
        fields = {"base_url": offer["base_url"], "api_key": offer["api_key"], "max_retries": RETRIES}
        self.client = openai.OpenAI(**fields) if mode == "sync" else openai.AsyncOpenAI(**fields)

    async def ask(self, messages, key):
        create = self.client.chat.completions.create
        if self.mode == "stream":
            return await self.streamed(messages, key)
        asked = {"model": self.model, "messages": messages}
        answer = await (asyncio.to_thread(create, **asked) if self.mode == "sync" else create(**asked))
        choice, notes = answer.choices[0], answer.gradbus
        return Told(notes["turn"], answer.usage.completion_tokens, choice.message.content or "", tuple(choice.token_ids))

    async def streamed(self, messages, key):
        create, headers = self.client.chat.completions.create, {"Idempotency-Key": key}
        options = {"stream": True, "stream_options": {"include_usage": True}, "extra_headers": headers}
        text, ids, notes, usage = "", (), None, None
        async for chunk in await create(model=self.model, messages=messages, **options):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                if choice.finish_reason:
                    ids, notes = tuple(choice.token_ids), chunk.gradbus
            usage = chunk.usage or usage
        return Told(notes["turn"], usage.completion_tokens, text, ids)

    async def close(self):
        await asyncio.to_thread(self.client.close) if self.mode == "sync" else await self.client.close()


class Responses(Chat):
    """OpenAI's responses."""

    async def ask(self, messages, key):
        asked = {"model": self.model, "input": messages}
        if self.mode == "stream":
            async with self.client.responses.stream(**asked, extra_headers={"Idempotency-Key": key}) as stream:
                answer = await stream.get_final_response()
        elif self.mode == "sync":
            answer = await asyncio.to_thread(self.client.responses.create, **asked)
        else:
            answer = await self.client.responses.create(**asked)
        return Told(answer.gradbus["turn"], answer.usage.output_tokens, answer.output_text)


class Messages(Chat):
    """Anthropic's messages."""

    def __init__(self, offer, mode):
        self.model, self.mode = offer["model"], mode
        fields = {"base_url": offer["base_url"].removesuffix("/v1"), "api_key": offer["api_key"], "max_retries": RETRIES}
        self.client = anthropic.Anthropic(**fields) if mode == "sync" else anthropic.AsyncAnthropic(**fields)

    async def ask(self, messages, key):
        asked = {"model": self.model, "messages": messages, "max_tokens": 64}
        if self.mode == "stream":
            async with self.client.messages.stream(**asked, extra_headers={"Idempotency-Key": key}) as stream:
                answer = await stream.get_final_message()
        elif self.mode == "sync":
            answer = await asyncio.to_thread(self.client.messages.create, **asked)
        else:
            answer = await self.client.messages.create(**asked)
        text = "".join(block.text for block in answer.content)
        return Told(answer.gradbus["turn"], answer.usage.output_tokens, text)


@dataclass
class Played:
    """An episode as its agent saw it."""

    attempt: int
    told: list[Told] = field(default_factory=list)
    ended: int = 0


class TalkingAgent(ClaimingAgent):
    """Plays by each of `ways` in turn, (interface, mode). Claims go to the service, all else through the proxy."""

    def __init__(self, lab, run, proxy, ways, players=8):
        self.service = json.loads((lab.state / "ports.json").read_text())["agent.http"]
        super().__init__(f"http://127.0.0.1:{self.service}", (lab.state / "secrets" / "api-key").read_text(), run, players)
        self.proxy, self.ways = proxy, ways
        self.played = {}
        """By episode: each time that it was claimed."""
        self.begun = 0

    async def episode(self, http, offer):
        offer["base_url"] = offer["base_url"].replace(f":{self.service}/", f":{self.proxy.port}/")
        interface, mode = self.ways[self.begun % len(self.ways)]
        self.begun += 1
        played, client, word = Played(offer["attempt"]), interface(offer, mode), offer["item"]["word"]
        self.played.setdefault(offer["episode"], []).append(played)

        async def ask(messages):
            key = uuid.uuid4().hex
            return await asked_again(lambda: client.ask(messages, key), played)

        with contextlib.suppress(openai.PermissionDeniedError, anthropic.PermissionDeniedError):
            await talk(ask, word, TURNS)
            await asyncio.gather(*(talk(ask, f"{word} {n}", 2) for n in range(SUB_AGENTS)), return_exceptions=True)
        await client.close()
        await self.end(http, offer, played)

    async def end(self, http, offer, played):
        texts = {told.turn: told.text for told in played.told}
        body = {"attempt": offer["attempt"], "reward": sum(len(set(text)) for text in texts.values()) / 64}
        path = f"{offer['base_url']}/agent/episodes/{offer['episode']}/end"
        headers = {"authorization": f"Bearer {offer['api_key']}"}
        for _ in range(RETRIES):
            with contextlib.suppress(httpx2.TransportError):
                played.ended = (await http.post(path, json=body, headers=headers)).status_code
                return


async def asked_again(ask, played):
    """A turn; a stream that breaks off is asked again with its idempotency key, which the SDKs leave to their caller."""
    for _ in range(RETRIES):
        try:
            told = await ask()
        except (httpx2.TransportError, openai.APIConnectionError, anthropic.APIConnectionError):
            continue
        played.told.append(told)
        return told
    raise AssertionError("too many answers were cut")


async def talk(ask, word, turns):
    """A conversation of so many turns, which begins anew every five."""
    history = [{"role": "user", "content": word}]
    for turn in range(turns):
        if turn and turn % COMPACTION == 0:
            history = [{"role": "user", "content": f"{word}, after {turn} turns"}]
        told = await ask(history)
        history = [*history, {"role": "assistant", "content": told.text}, {"role": "user", "content": "and"}]
