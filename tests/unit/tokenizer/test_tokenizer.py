"""A tokenizer in its process: the same ids and texts as in this one, and an end to whatever a user's files do."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import string
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.errors import DatasetError, ModelError
from gradbus.niceness import USERS_NICENESS
from gradbus.tokenizer import process as process_module
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.errors import ModelFileError, TokenizerProcessError
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.limits import MEMORY_BYTES
from gradbus.tokenizer.tokenizer import Deadlines, NumberedPrompt, Tokenizer

LIMITS = PromptLimits(8)
PATIENT, IMPATIENT = Deadlines(load=60, call=60), Deadlines(load=60, call=1)
CHAT = [{"role": "user", "content": "hi"}]
NESTED_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"

BRANCHES = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}"


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def sockets_of(pid):
    return {target for entry in Path(f"/proc/{pid}/fd").iterdir() if (target := os.readlink(entry)).startswith("socket:")}


def pid_of(tokenizer):
    return tokenizer._process._pid


@pytest.fixture
def processes(fork_server):
    """Pids of the tokenizer processes that exist; none after the test."""
    yield lambda: children(fork_server._server.process.pid)
    assert children(fork_server._server.process.pid) == []


@contextlib.asynccontextmanager
async def opened(server, folder, deadlines=PATIENT):
    tokenizer = await Tokenizer.open(server, folder, LIMITS, deadlines)
    try:
        yield tokenizer
    finally:
        await tokenizer.close()


def numbered(prompts):
    return [NumberedPrompt(line, prompt) for line, prompt in enumerate(prompts, start=1)]


def change_tokenizer(folder, **parts):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


TEXT = st.text(st.sampled_from(string.printable + "äßμ語🙂\u202e\x00"), min_size=1, max_size=30)
PROMPT = TEXT | st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": TEXT}), min_size=1, max_size=3)


def test_its_ids_and_texts_are_those_of_an_encoder_in_this_process(fork_server, chat_folder, processes):
    encoder = PromptEncoder(chat_folder, LIMITS)
    with asyncio.Runner() as runner:
        tokenizer = runner.run(Tokenizer.open(fork_server, chat_folder, LIMITS, PATIENT))
        assert tokenizer.stop_token_ids == encoder.stop_token_ids

        @given(st.lists(PROMPT, max_size=40), st.lists(st.lists(st.integers(0, 63), max_size=40), max_size=20))
        def equal(prompts, responses):
            assert runner.run(tokenizer.encode(numbered(prompts))) == [encoder.encode(prompt, 1) for prompt in prompts]
            assert runner.run(tokenizer.decode(responses)) == encoder.decode(responses)

        equal()
        runner.run(tokenizer.close())


async def test_more_than_one_call_takes_is_encoded_and_decoded_in_order(fork_server, model_folder, processes):
    prompts = ["abcdefgh"[: 1 + n % 8] for n in range(1000)]
    encoder = PromptEncoder(model_folder, LIMITS)
    async with opened(fork_server, model_folder) as tokenizer:
        ids = await tokenizer.encode(numbered(prompts))
        assert ids == [encoder.encode(prompt, 1) for prompt in prompts]
        assert await tokenizer.decode(ids * 5) == encoder.decode(ids * 5)
        assert await tokenizer.decode([(3,) * 40_000, (), (4,)]) == encoder.decode([(3,) * 40_000, (), (4,)])
        assert await tokenizer.encode([]) == await tokenizer.decode([]) == []


async def test_a_check_finds_what_an_encoding_finds_and_keeps_no_ids(fork_server, model_folder, processes):
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    change_tokenizer(model_folder, normalizer={"type": "Replace", "pattern": {"String": "x"}, "content": "ab" * 50})
    prompts = numbered(["x" * 1000] * 5)
    async with opened(fork_server, model_folder) as tokenizer:
        tracemalloc.start()
        await tokenizer.check(prompts)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
        assert [len(ids) for ids in await tokenizer.encode(prompts)] == [100_000] * 5
        with pytest.raises(DatasetError, match="line 2 has an empty prompt"):
            await tokenizer.check(numbered(["a", ""]))
        os.kill(pid_of(tokenizer), signal.SIGKILL)
        await tokenizer.check(numbered(["a", "b"]))


async def test_a_template_is_told_the_day_of_the_submission(fork_server, chat_folder, processes):
    (chat_folder / "chat_template.jinja").write_text("{{ strftime_now('%B %A') }}")
    limits = PromptLimits(8, submitted_unix_ns=1_000_000_000 * 10**9)
    tokenizer = await Tokenizer.open(fork_server, chat_folder, limits, PATIENT)
    told, expected = await tokenizer.encode(numbered([CHAT, "September Sunday"]))
    assert told == expected
    await tokenizer.close()


@pytest.mark.parametrize(
    "template", ["{% for n in range(20) %}{{ 'abcdefgh' | list | random }}{% endfor %}", "{{ lipsum(n=1, min=5, max=9) }}"]
)
async def test_a_template_that_draws_draws_the_same_for_a_line_in_every_process(fork_server, chat_folder, processes, template):
    (chat_folder / "chat_template.jinja").write_text(template)
    found = []
    for rows in (slice(0, 2), slice(1, 2)):
        async with opened(fork_server, chat_folder) as tokenizer:
            found += await tokenizer.encode(numbered([CHAT, CHAT])[rows])
    assert found[0] != found[1] == found[2]


async def test_calls_at_the_same_time_get_their_own_replies(fork_server, model_folder, processes):
    encoder = PromptEncoder(model_folder, LIMITS)
    async with opened(fork_server, model_folder) as tokenizer:
        prompts = [letter * 5 for letter in string.ascii_lowercase]
        found = await asyncio.gather(*(tokenizer.encode(numbered([prompt])) for prompt in prompts))
        assert found == [[encoder.encode(prompt, 1)] for prompt in prompts]


async def test_errors_are_those_of_the_encoder_without_paths_of_this_machine(fork_server, chat_folder, processes):
    async with opened(fork_server, chat_folder) as tokenizer:
        with pytest.raises(DatasetError, match="line 2 has an empty prompt"):
            await tokenizer.encode(numbered(["a", "", "b"]))
        with pytest.raises(DatasetError, match="line 1 is no Unicode text"):
            await tokenizer.encode(numbered(["\ud800"]))
    (chat_folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json") as failed:
        await Tokenizer.open(fork_server, chat_folder, LIMITS, PATIENT)
    assert str(chat_folder) not in str(failed.value)


@pytest.mark.parametrize(
    ("text", "error"), [("{{ raise_exception('\\ud800 no') }}", DatasetError), ("{{ 'x'['\\ud800'] | int('\\ud800') + 1 }}", ModelError)]
)
async def test_an_error_of_a_template_with_half_a_surrogate_pair_can_be_passed_on(fork_server, chat_folder, processes, text, error):
    (chat_folder / "chat_template.jinja").write_text(text)
    tokenizer = await Tokenizer.open(fork_server, chat_folder, LIMITS, PATIENT)
    with pytest.raises(error) as failed:
        await tokenizer.check([NumberedPrompt(1, CHAT)])
    assert "ud800" in str(failed.value).encode().decode()
    await tokenizer.close()


@pytest.mark.parametrize("endless", [NESTED_LOOPS, BRANCHES])
async def test_a_template_that_does_not_end_is_ended_and_named_with_its_row(fork_server, chat_folder, processes, endless):
    (chat_folder / "chat_template.jinja").write_text("{% if messages[0].content == 'x' %}" + endless + "{% else %}a{% endif %}")
    rows = [[{"role": "user", "content": text}] for text in "abxd"]
    async with opened(fork_server, chat_folder, IMPATIENT) as tokenizer:
        with pytest.raises(
            ModelFileError, match=r"line 3 cannot be encoded: it took more than 1 s of the processor; simplify the chat"
        ) as failed:
            await tokenizer.encode(numbered(rows))
        assert failed.value.file == "chat_template.jinja"
        assert await tokenizer.encode(numbered(rows[:2])), "the next call is served by another process"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{% set x = 'ab' * 10 ** 9 %}{{ x ~ x }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ '%20000000000d' % 1 }}",
        "{{ 'a'.center(10 ** 11) }}",
        "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{{ 10 ** (10 ** 10) }}",
    ],
)
async def test_a_template_that_takes_memory_or_counts_for_ever_ends(fork_server, chat_folder, processes, template):
    (chat_folder / "chat_template.jinja").write_text(template)
    async with opened(fork_server, chat_folder, IMPATIENT) as tokenizer:
        with pytest.raises(ModelFileError, match=r"line 1 .*(MiB|more than 1 s)") as failed:
            await tokenizer.encode(numbered([CHAT]))
    assert failed.value.file in {"chat_template.jinja", "tokenizer.json"}


CATASTROPHE = {"Regex": "(x+x+)+y"}
"""Its matcher tries every way to divide the letters."""


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Replace", "pattern": CATASTROPHE, "content": ""}},
        {"pre_tokenizer": {"type": "Split", "pattern": CATASTROPHE, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * (1 << 25)}},
    ],
)
async def test_a_tokenizer_that_does_not_end_on_a_text_is_ended(fork_server, model_folder, processes, part):
    change_tokenizer(model_folder, **part)
    async with opened(fork_server, model_folder, IMPATIENT) as tokenizer:
        with pytest.raises((ModelFileError, DatasetError), match="line 1"):
            await tokenizer.encode(numbered(["x" * 1000]))


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": CATASTROPHE, "content": ""}]},
        {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * (1 << 24)},
    ],
)
async def test_a_decoder_that_does_not_end_or_makes_too_much_is_ended(fork_server, model_folder, processes, decoder):
    change_tokenizer(model_folder, decoder=decoder)
    async with opened(fork_server, model_folder, IMPATIENT) as tokenizer:
        (ids,) = await tokenizer.encode(numbered(["x" * 1000]))
        with pytest.raises(ModelFileError, match="decode") as failed:
            await tokenizer.decode([ids] * 3)
        assert failed.value.file == "tokenizer.json"


async def test_a_process_that_is_killed_from_outside_costs_no_result(fork_server, model_folder, processes):
    async with opened(fork_server, model_folder) as tokenizer:
        before = await tokenizer.encode(numbered(["abc", "d"]))
        killed = pid_of(tokenizer)
        os.kill(killed, signal.SIGKILL)
        assert await tokenizer.encode(numbered(["abc", "d"])) == before
        assert pid_of(tokenizer) != killed
        os.kill(pid_of(tokenizer), signal.SIGSEGV)
        assert [text.replace(" ", "") for text in await tokenizer.decode(before)] == ["abc", "d"]


async def test_a_fork_server_that_is_killed_costs_no_result(model_folder):
    server = ForkServer()
    try:
        async with opened(server, model_folder) as tokenizer:
            before, first, child = await tokenizer.encode(numbered(["abc"])), server._server.process, pid_of(tokenizer)
            first.kill()
            first.wait()
            assert await tokenizer.encode(numbered(["abc"])) == before
            assert server._server.process is not first
            assert not is_running(child), "its children ended with it"
    finally:
        await server.close()


async def test_a_cancelled_call_leaves_no_process_and_the_next_one_works(fork_server, chat_folder, processes):
    (chat_folder / "chat_template.jinja").write_text("{% if messages[0].content == 'x' %}" + NESTED_LOOPS + "{% endif %}a")
    async with opened(fork_server, chat_folder) as tokenizer:
        call = asyncio.create_task(tokenizer.encode(numbered([[{"role": "user", "content": "x"}]])))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert processes() == []
        assert await tokenizer.encode(numbered([CHAT])) == [(3,)]


async def test_a_closed_tokenizer_starts_no_process(fork_server, model_folder, processes):
    tokenizer = await Tokenizer.open(fork_server, model_folder, LIMITS, PATIENT)
    await tokenizer.close()
    assert processes() == []
    with pytest.raises(TokenizerProcessError, match="closed"):
        await tokenizer.encode(numbered(["a"]))


async def test_a_tokenizer_that_is_closed_while_it_loads_leaves_no_process(fork_server, model_folder, processes):
    tokenizer = Tokenizer(fork_server, model_folder, LIMITS, PATIENT)
    encoding = asyncio.create_task(tokenizer.encode(numbered(["a"])))
    while not processes():  # noqa: ASYNC110 - only the list of processes tells
        await asyncio.sleep(0)
    await tokenizer.close()
    with pytest.raises(TokenizerProcessError, match="closed"):
        await encoding


async def test_a_tokenizer_that_cannot_be_loaded_leaves_no_process(fork_server, model_folder, processes):
    (model_folder / "tokenizer.json").write_text("[" * 50_000 + "]" * 50_000)
    with pytest.raises(ModelFileError, match=r"tokenizer.json"):
        await Tokenizer.open(fork_server, model_folder, LIMITS, PATIENT)
    assert processes() == []


async def test_a_load_that_computes_for_too_long_is_ended(fork_server, model_folder, processes):
    vocabulary = {"<unk>": 0} | {f"word{number}": number for number in range(1, 1_500_000)}
    change_tokenizer(model_folder, model={"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"})
    with pytest.raises(ModelFileError, match="the tokenizer cannot be loaded: it took more than 0 s of the processor"):
        await Tokenizer.open(fork_server, model_folder, LIMITS, Deadlines(load=0, call=60))


async def test_a_process_that_neither_replies_nor_computes_is_replaced(fork_server, model_folder, processes, monkeypatch):
    monkeypatch.setattr(process_module, "_WALL_SECONDS", 0.0)
    async with opened(fork_server, model_folder, Deadlines(load=60, call=1)) as tokenizer:
        before = await tokenizer.encode(numbered(["abc"]))
        os.kill(pid_of(tokenizer), signal.SIGSTOP)
        assert await tokenizer.encode(numbered(["abc"])) == before


async def test_a_process_is_limited_and_knows_nothing_of_its_service(fork_server, model_folder, processes):
    async with opened(fork_server, model_folder) as tokenizer:
        process = Path(f"/proc/{pid_of(tokenizer)}")
        limits = {line[:26].strip(): line[26:].split()[0] for line in (process / "limits").read_text().splitlines()[1:]}
        assert limits["Max data size"] == str(MEMORY_BYTES)
        assert (limits["Max file size"], limits["Max core file size"], limits["Max open files"]) == ("0", "0", "64")
        assert limits["Max cpu time"] != "unlimited"
        assert (process / "oom_score_adj").read_text().strip() == "1000"
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, pid_of(tokenizer)))
        assert its == min(own + USERS_NICENESS, 19)
        variables = {entry.partition("=")[0] for entry in (process / "environ").read_text().split("\0") if entry}
        assert variables <= {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR"} | {
            *("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY")
        }
        assert "libtorch" not in (process / "maps").read_text()
        assert len(list((process / "task").iterdir())) == 1


async def test_two_tokenizers_hold_none_of_each_others_pipes(fork_server, model_folder, chat_folder, processes):
    async with opened(fork_server, model_folder) as first, opened(fork_server, chat_folder) as second:
        sockets = [sockets_of(pid_of(tokenizer)) for tokenizer in (first, second)]
        assert [len(held) for held in sockets] == [1, 1]
        assert not sockets[0] & sockets[1]


SERVICE = """
import asyncio, sys
from pathlib import Path
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.tokenizer import Deadlines, NumberedPrompt, Tokenizer

async def main():
    server = ForkServer()
    tokenizer = await Tokenizer.open(server, Path(sys.argv[1]), PromptLimits(8), Deadlines(60, 60))
    print(server._server.process.pid, tokenizer._process._pid, flush=True)
    await tokenizer.encode([NumberedPrompt(1, [{"role": "user", "content": "x"}])])

asyncio.run(main())
"""


def test_no_process_outlives_a_service_that_is_killed(chat_folder):
    (chat_folder / "chat_template.jinja").write_text(NESTED_LOOPS)
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(chat_folder)], stdout=subprocess.PIPE)
    pids = [int(pid) for pid in service.stdout.readline().split()]
    assert len(pids) == 2
    service.kill()
    service.wait()
    while any(is_running(pid) for pid in pids):
        pass


def test_a_fork_server_whose_start_was_interrupted_starts_again():
    server = ForkServer()
    with asyncio.Runner() as runner, pytest.raises(TimeoutError):
        runner.run(asyncio.wait_for(server.start(), 0.05))
    with asyncio.Runner() as runner:
        runner.run(server.start())
        runner.run(server.close())


async def test_a_fork_server_that_is_closed_does_not_start_again():
    server = ForkServer()
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)
    process = server._server.process
    await server.close()
    assert process.poll() is not None
    for call in (starting, server.fork()):
        with pytest.raises(TokenizerProcessError, match="ending"):
            await call
    assert server._server is None


async def test_a_request_to_a_fork_server_that_hangs_ends_when_it_is_closed():
    server = ForkServer()
    await server.start()
    os.kill(server._server.process.pid, signal.SIGSTOP)
    forking = asyncio.create_task(server.fork())
    await asyncio.sleep(0.2)  # it waits for the reply
    async with asyncio.timeout(30):
        await server.close()
        with pytest.raises(TokenizerProcessError, match="ending"):
            await forking


async def test_a_machine_without_room_for_a_process_is_not_the_models_fault(monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(TokenizerProcessError, match=r"no more processes.*free memory"):
        await ForkServer().fork()


async def test_a_fork_server_that_cannot_import_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError('no transformers here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer()
    with pytest.raises(TokenizerProcessError, match=r"no transformers here.*install"):
        await server.start()
    await server.close()
