"""The real server as a teacher: its tokenizer is compared at submission, and its log-probabilities are those of transformers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import numpy as np
import pytest
import sglang_lab
import torch

from gradbus.errors import ServiceAwayError, UserCodeError
from gradbus.spec import ServedTeacherSpec, TeacherSpec
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus.user_services.addresses import AddressPolicy
from gradbus.user_services.keys import ServiceKeys
from gradbus.user_services.sglang import SGLangClient
from gradbus_gateway.intake.spec.teacher_servers import SubmittedTeachers
from gradbus_gateway.intake.spelling import spelling_of
from gradbus_gateway.settings import TeacherSettings
from gradbus_reference.requests import LogProbsQuestion, PromptResponse
from gradbus_reference.settings import ReferenceSettings
from gradbus_reference.teacher_servers import TeacherServers

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_tokenizer):
    folder = tmp_path_factory.mktemp("teacher")
    sglang_lab.make_folder(folder)
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.fixture(scope="module")
def url(folder, free_port):
    """A server as a user starts one."""
    chosen, port = sglang_lab.settings(), free_port()
    command = [chosen.python, "-m", "sglang.launch_server", "--model-path", str(folder), "--port", str(port), "--skip-server-warmup"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADBUS_")} | chosen.environment
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, *chosen.arguments], env=environment, stdout=log, stderr=log, start_new_session=True)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


@pytest.fixture
async def server(url):
    """What the gateway finds, once the server answers."""
    submitted = SubmittedTeachers(TeacherSettings(), allow_loopback=True)
    async with asyncio.timeout(600):
        while True:
            found, faults = await submitted.found(TeacherSpec(url=url), None)
            if found is not None:
                return found
            assert "check that it runs" in str(faults[0])
            await asyncio.sleep(2)


async def opened(fork_server, folder):
    return await Tokenizer.open(fork_server, folder, PromptLimits(8), Deadlines(60, 60))


async def test_the_gateway_knows_the_policys_tokenizer_and_another_one(server, url, folder, fork_server, tmp_path, write_tokenizer):
    assert (server.model_path, server.weight_version) == (str(folder), "default")
    assert server.most_tokens > 1000
    submitted = SubmittedTeachers(TeacherSettings(), allow_loopback=True)
    client = SGLangClient(url, AddressPolicy(allow_loopback=True), ServiceKeys())
    await client.check_token(sglang_lab.VOCAB - 1, 60.0)
    with pytest.raises(UserCodeError, match=rf"valid range is \[0, {sglang_lab.VOCAB}\)"):
        await client.check_token(sglang_lab.VOCAB, 60.0)
    await client.close()
    same = await opened(fork_server, folder)
    assert await submitted.tokenizer_fault(await spelling_of(same), url) is None
    await same.close()
    sglang_lab.make_folder(tmp_path)
    letters = {character: number for number, character in enumerate("?1023456789+=-x ")}
    write_tokenizer(tmp_path, model={"type": "WordLevel", "vocab": letters, "unk_token": "?"})
    other = await opened(fork_server, tmp_path)
    assert "token 1 is '1', and has the ids [2] there, not [1]; there it is '0'" in str(
        await submitted.tokenizer_fault(await spelling_of(other), url)
    )
    await other.close()


@pytest.mark.parametrize("top_k", [0, 5])
async def test_log_probabilities_are_those_of_transformers(server, url, folder, top_k):
    model = sglang_lab.make_folder(folder / "again")
    served = ServedTeacherSpec(model_path=str(folder), weight_version="default", vocab_size=sglang_lab.VOCAB)
    rng = np.random.default_rng(5)
    given = [
        PromptResponse(f"0.{n}", *(rng.integers(0, sglang_lab.VOCAB, size).astype(np.int32) for size in (6, 1 + 9 * n))) for n in range(8)
    ]
    given += [PromptResponse("1.0", given[0].prompt_ids, given[7].token_ids)]
    servers = TeacherServers(ReferenceSettings(allow_loopback=True))
    answers = await servers.values(TeacherSpec(url=url, served=served), LogProbsQuestion("run-1", 1.0, of_teacher=True, top_k=top_k), given)
    for asked, found in zip(given, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([*asked.prompt_ids, *asked.token_ids])[None]).logits[0, len(asked.prompt_ids) - 1 : -1]
        rows = logits.double().log_softmax(-1).numpy()
        own = rows[np.arange(len(asked.token_ids)), asked.token_ids]
        np.testing.assert_allclose(found["own"] if top_k else found, own, rtol=1e-5, atol=1e-5)
        if top_k:
            np.testing.assert_allclose(found["logprobs"][:, :-1], -np.sort(-rows, axis=1)[:, :top_k], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(np.exp(found["logprobs"].astype(np.float64)).sum(1), 1.0, atol=1e-6)
            np.testing.assert_allclose(np.take_along_axis(rows, found["ids"], 1), found["logprobs"][:, :-1], rtol=1e-5, atol=1e-5)
    await servers.close()


async def test_the_server_says_why_it_refuses_and_a_dead_one_is_away(server, url, free_port):
    servers = TeacherServers(ReferenceSettings(allow_loopback=True))
    served = ServedTeacherSpec(model_path=server.model_path, weight_version=server.weight_version, vocab_size=1000)
    question = LogProbsQuestion("run-1", 1.0, of_teacher=True)
    long = [PromptResponse("0.0", np.ones(9000, np.int32), np.ones(1, np.int32))]
    with pytest.raises(UserCodeError, match=r"answered /generate with 400: .*9001 tokens"):
        await servers.values(TeacherSpec(url=url, served=served), question, long)
    with pytest.raises(ServiceAwayError):
        await servers.values(TeacherSpec(url=f"http://127.0.0.1:{free_port()}", served=served), question, long)
    await servers.close()
