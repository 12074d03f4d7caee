"""A submission whose tokenizer or template fails on its first rows is refused, with the file or the dataset, and the cause."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
CHAT = [{"role": "user", "content": "1+1="}]
NESTED = "[" * 50_000 + "]" * 50_000
CATASTROPHE = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}


@pytest.fixture
def submit(http, tmp_path, spec, stack):
    """Uploads the files of `spec` and submits it; the answer."""

    def submit():
        model = {path.name: stored(http, path) for path in (tmp_path / "model").iterdir()}
        data = {name: stored(http, tmp_path / f"{name}.jsonl") for name in ("train", "eval")}
        return http.post("/v1/runs", json=spec | {"model": {"path": "m", "files": model}, "data": data})

    yield submit
    until(lambda: tokenizers(stack.gateway_pid) == [])


def until(condition):
    """Waits for what the kernel shows a moment later."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stored(http, path):
    return http.post("/v1/files", content=path.read_bytes()).json()["id"]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def tokenizers(gateway_pid):
    """Processes that the gateway's fork server has forked."""
    return [child for server in children(gateway_pid) for child in children(server)]


def faults(answer):
    assert answer.status_code == 422, answer.text
    return [(fault["path"], fault["message"]) for fault in answer.json()["errors"]]


THINKS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ (m.content.split('</think>') | last if loop.index0 < ns.last else m.content) + '\\n' }}{% endfor %}"
)


def test_a_template_that_removes_thinking_is_refused_unless_the_run_says_what_becomes_of_it(submit, spec, tmp_path):
    (tmp_path / "model" / "chat_template.jinja").write_text(THINKS)
    write_rows(tmp_path / "train.jsonl", CHAT)
    write_rows(tmp_path / "eval.jsonl", CHAT)
    spec["environment"] = {"service": "http://127.0.0.1:1/"}
    ((path, message),) = faults(submit())
    assert path == "environment.thinking"
    assert "it removes the thinking of turns before messages of user; set environment.thinking" in message
    for said in ({"thinking": "keep"}, {"tool_parser": "plain"}):
        spec["environment"] |= said
        assert submit().status_code == 201, said
        spec["environment"] = {"service": "http://127.0.0.1:1/"}
    del spec["environment"]
    assert submit().status_code == 201, "a run of single turns"


def write_rows(path, *prompts):
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "2"}) + "\n" for prompt in prompts))


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ 1 / 0 }}", "line 1 (ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "line 1 (RecursionError"),
        ("{% include 'x' %}", "line 1 (TypeError: no loader"),
        (LOOPS, "line 1 cannot be encoded: it took more than 5 s of the processor; simplify the chat template"),
        ("{{ 'a' * 10 ** 10 }}", "line 1 (it needs more than 1024 MiB)"),
    ],
)
def test_a_chat_template_that_fails_is_refused_by_its_file(submit, tmp_path, template, cause):
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    write_rows(tmp_path / "train.jsonl", CHAT)
    ((path, message),) = faults(submit())
    assert path == "model.files.chat_template.jinja"
    assert cause in message


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("generation_config.json", "[1]", "not a JSON object"),
        ("generation_config.json", '{"eos_token_id": ["a", {}]}', "eos_token_id = ['a', {}]"),
        ("tokenizer.json", NESTED, "cannot be loaded"),
        ("tokenizer.json", '{"model": ' + NESTED + "}", "cannot be loaded"),
        ("tokenizer.json", "{}", "cannot be loaded"),
        ("config.json", {"layer_types": [["x"], "y"]}, "transformers does not take it"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_its_name(submit, tmp_path, name, content, cause):
    changed = tmp_path / "model" / name
    changed.write_text(content if isinstance(content, str) else json.dumps(json.loads(changed.read_text()) | content))
    ((path, message),) = faults(submit())
    assert path == f"model.files.{name}"
    assert cause in message
    assert "/tmp" not in message


def test_a_tokenizer_whose_expressions_do_not_end_is_refused(submit, tmp_path, write_tokenizer):
    write_tokenizer(tmp_path / "model", pre_tokenizer=CATASTROPHE)
    write_rows(tmp_path / "train.jsonl", "x" * 50)
    ((path, message),) = faults(submit())
    assert path == "model.files.tokenizer.json"
    assert "line 1" in message


@pytest.mark.parametrize("field", ["train", "eval"])
@pytest.mark.parametrize(("prompt", "cause"), [("1" * 60, "has 60 tokens, at most 56 fit")])
def test_a_row_that_the_model_cannot_take_is_refused_by_its_line(submit, tmp_path, field, prompt, cause):
    write_rows(tmp_path / f"{field}.jsonl", "1+1=", prompt)
    ((path, message),) = faults(submit())
    assert path == f"data.{field}"
    assert cause in message
    assert "line 2" in message


def test_rows_beyond_the_first_are_left_to_the_run(submit, tmp_path):
    write_rows(tmp_path / "train.jsonl", *["1+1="] * 200, "1" * 60)
    assert submit().status_code == 201


def test_what_passed_is_not_checked_again(submit, stack):
    assert submit().status_code == 201
    (server,) = children(stack.gateway_pid)
    os.kill(server, signal.SIGSTOP)  # it forks nothing now
    try:
        assert submit().status_code == 201
    finally:
        os.kill(server, signal.SIGCONT)


def test_the_fork_server_starts_with_the_first_submissions_and_ends_with_the_gateway(stack, start_gateway, stored_spec):
    url, gateway = start_gateway()
    assert httpx2.get(url + "/readyz", timeout=60).status_code == 200
    assert children(gateway.pid) == []
    with ThreadPoolExecutor() as threads, httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60) as http:
        specs = [stored_spec | {"rollout": {"max_new_tokens": tokens}} for tokens in (8, 9, 10)]
        assert [answer.status_code for answer in threads.map(lambda spec: http.post("/v1/runs", json=spec), specs)] == [201] * 3
    (server,) = children(gateway.pid)
    gateway.terminate()
    assert gateway.wait(60) == 0
    until(lambda: not Path(f"/proc/{server}").exists())


def test_a_fork_server_that_is_lost_is_started_again(submit, tmp_path, stack):
    assert submit().status_code == 201
    (server,) = children(stack.gateway_pid)
    os.kill(server, signal.SIGKILL)
    write_rows(tmp_path / "train.jsonl", "2+2=")
    assert submit().status_code == 201
    assert children(stack.gateway_pid) != [server]
