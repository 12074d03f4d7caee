"""A submission whose teacher is an SGLang server: asked what it serves and how it divides text, and refused with what is wrong."""

import asyncio
import json
import threading

import pytest
from sglang_peer import Faults, SGLangPeer

from gradbus.errors import SpecError
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus_gateway.intake import spelling
from gradbus_gateway.intake.spec import teacher_servers
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings

LETTERS = {character: number for number, character in enumerate("?0123456789+=-x ")}
KEY = "of-the-server"


def divide_by(peer, ids):
    """Gives the peer a tokenizer of letters with these ids."""
    texts = {token: character for character, token in ids.items()}
    peer.encode = lambda text: [ids.get(character, ids["?"]) for character in text]
    peer.decode = lambda tokens: "".join(texts.get(token, "?") for token in tokens)


@pytest.fixture
def peer():
    """A server of a model with the policy's tokenizer."""
    peer = SGLangPeer(vocab_size=16)
    divide_by(peer, LETTERS)
    yield peer
    peer.close()


@pytest.fixture
def intake(tmp_path, fork_server, objects):
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache", allow_loopback=True)
    return SpecIntake(objects, fork_server, settings, None)


@pytest.fixture
def body(tmp_path, write_model, peer):
    write_model(tmp_path / "roots" / "model")
    (tmp_path / "roots" / "train.jsonl").write_text('{"prompt": "1+1="}\n')
    return {
        "name": "sums",
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rollout": {"max_new_tokens": 8, "group_size": 4},
        "algorithm": {"name": "opd"},
        "teacher": {"url": peer.url},
        "schedule": {"steps": 4, "groups_per_step": 2},
    }


async def test_what_the_server_has_is_stored_with_the_run(intake, body, peer):
    spec = await intake.accept(body, "key")
    assert spec.teacher.served.model_dump() == {"model_path": "models/large", "weight_version": "default", "vocab_size": 16}
    assert (spec.teacher.files, spec.is_deterministic, spec.teacher.source) == (None, False, peer.url)
    assert (await intake.accept(spec.model_dump(), "key")) == spec, "a stored spec can be submitted again"


async def test_a_stored_spec_is_refused_once_the_server_has_other_weights(intake, refused, body, peer):
    stored = (await intake.accept(body, "key")).model_dump()
    peer.weight_version = "step-9"
    assert (await refused(stored)).startswith("teacher.served: the server has step-9 of models/large; given default of models/large")


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (LETTERS | {"1": 3, "2": 2}, "token 2 is '1', and has the ids [3] there, not [2]; there it is '2'"),
        (
            {name: at for name, at in LETTERS.items() if name != "x"},
            "token 14 is 'x', and has the ids [0] there, not [14]",
        ),
    ],
)
async def test_another_tokenizer_is_refused_with_the_first_text_that_it_divides_otherwise(refused, body, peer, ids, words):
    divide_by(peer, ids)
    fault = await refused(body)
    assert fault.startswith("teacher.url: judges the policy's tokens by their ids, and the server's tokenizer is another one")
    assert words in fault


async def test_a_server_that_treats_spaces_otherwise_and_has_the_same_tokens_is_taken(intake, body, peer):
    encode = peer.encode
    peer.encode = lambda text: encode(text.strip())
    assert (await intake.accept(body, "key")).teacher.served


async def test_a_server_that_gets_another_tokenizer_is_not_known_from_before(intake, refused, body, peer):
    await intake.accept(body, "key")
    divide_by(peer, LETTERS | {"1": 3, "2": 2})
    assert "is another one" in await refused(body)


async def test_a_server_without_a_tokenizer_is_refused_with_the_flag(refused, body, peer):
    peer.encode = None
    fault = await refused(body)
    assert "its tokenizer cannot be compared with the policy's" in fault
    assert "without --skip-tokenizer-init" in fault


GRADED = {"algorithm": {}, "reward": {"grader": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "2"}}}


async def test_a_server_that_is_slow_over_texts_holds_up_no_other_submission(intake, body, peer):
    begun, released, encode = threading.Event(), threading.Event(), peer.encode

    def slow(text):
        begun.set()
        released.wait(60)
        return encode(text)

    peer.encode = slow
    compared = asyncio.create_task(intake.accept(body, "key"))
    assert await asyncio.to_thread(begun.wait, 60)
    judged = {name: value for name, value in body.items() if name != "teacher"} | GRADED
    for caller in ("key", "another"):
        assert (await intake.accept(judged | {"name": caller}, caller)).teacher is None
    assert not compared.done()
    released.set()
    assert (await compared).teacher.served


async def test_a_tokenizer_that_cannot_be_written_out_in_time_is_refused_with_another_way(refused, body, monkeypatch):
    monkeypatch.setattr(spelling, "_SECONDS", -1.0)
    fault = await refused(body)
    assert fault.startswith("model: the gateway wrote 16 tokens of its tokenizer within -1 s")
    assert "name a teacher with `path` or `run`" in fault


async def test_a_spelling_has_every_token_once_and_in_order(fork_server, tmp_path, write_model):
    write_model(tmp_path / "model")
    tokenizer = await Tokenizer.open(fork_server, tmp_path / "model", PromptLimits(8), Deadlines(60, 60))
    found = list((await spelling.spelling_of(tokenizer)).tokens())
    [(first, tokens)] = found
    assert (first, tokens) == (0, await tokenizer.spelled(0))
    assert [ids for _, ids in tokens] == [(token,) for token in range(16)]
    await tokenizer.close()


async def test_a_server_that_takes_too_long_over_texts_is_refused(refused, body, peer, monkeypatch):
    monkeypatch.setattr(teacher_servers, "_COMPARISON_SECONDS", 0.5)
    released = threading.Event()
    peer.encode = lambda _: [0] * released.wait(60)
    fault = await refused(body)
    released.set()
    assert fault.startswith("teacher.url: its tokenizer could not be compared with the policy's within 0.5 s")


async def test_a_server_that_is_down_or_none_is_refused_with_what_to_check(refused, body, peer, free_port):
    down = await refused(body | {"teacher": {"url": f"http://127.0.0.1:{free_port()}"}})
    assert down.startswith("teacher.url: the SGLang server at http://127.0.0.1:")
    assert "check that it runs" in down
    peer.faults = Faults(status=404)
    assert "answered /model_info with 404" in await refused(body)


@pytest.mark.parametrize("name", ["model_path", "weight_version"])
async def test_a_name_longer_than_a_spec_keeps_is_refused(intake, refused, body, peer, name):
    setattr(peer, name, "m" * 4096)
    assert (await intake.accept(body, "key")).teacher.served
    setattr(peer, name, "m" * 4097)
    assert f"cannot be used: its {name} is longer than 4096 characters" in await refused(body)


async def test_a_server_that_wants_a_key_gets_the_operators_from_its_file(fork_server, objects, tmp_path, body, peer, refused, monkeypatch):
    peer.key = KEY
    assert "GRADBUS_TEACHER_KEYS" in await refused(body)
    (tmp_path / "gradbus_teacher_keys").write_text(json.dumps({peer.url: KEY}))
    monkeypatch.setenv("GRADBUS_SECRETS_DIR", str(tmp_path))
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache", allow_loopback=True)
    assert (await SpecIntake(objects, fork_server, settings, None).accept(body, "key")).teacher.served


async def test_a_host_that_the_operator_does_not_allow_is_never_asked(fork_server, objects, tmp_path, body, peer):
    closed = SpecIntake(objects, fork_server, GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache"), None)
    for url, words in (
        (peer.url, "loopback"),
        ("http://teacher.example:30000", "GRADBUS_TEACHER_HOSTS"),
        ("http://169.254.169.254", "never"),
    ):
        with pytest.raises(SpecError) as caught:
            await closed.accept(body | {"teacher": {"url": url}}, "key")
        [fault] = caught.value.faults
        assert (fault.path, words in str(fault)) == ("teacher.url", True)
    assert peer.asked == []


async def test_a_sample_that_may_be_longer_than_a_request_is_refused(intake, refused, body, peer):
    peer.max_req_input_len = 32
    fault = await refused(body)
    assert "the longest sample does not fit a request to the teacher's server; given 64 tokens; allowed: at most 31" in fault
    body["rollout"]["max_prompt_tokens"] = 23
    assert (await intake.accept(body, "key")).teacher.served


async def test_a_vocabulary_smaller_than_the_policys_is_refused_before_the_server_is_asked_about_a_token(refused, body, peer):
    peer.vocab_size = 15
    fault = await refused(body)
    assert fault.startswith("teacher.url: has no embeddings for some of the policy's tokens")
    assert "valid range is [0, 15)" in fault
    assert "at least the policy's vocab_size, 16" in fault


async def test_more_likely_tokens_than_the_policy_has_are_refused(intake, refused, body, peer):
    body["algorithm"] |= {"importance": "none", "trust_region": "none"}
    body["teacher"]["top_k"] = 15
    assert (await intake.accept(body, "key")).teacher.top_k == 15
    body["teacher"]["top_k"] = 16
    assert "less than vocab_size, 16" in await refused(body)
