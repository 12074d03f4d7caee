"""One real stack for all tests here, started by the command line, with tiny models and short specs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from forked_command import ForkedCommands
from tokenizers import ByteLevelBPETokenizer, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gradbus.client import Client, document

FINAL = {"succeeded", "failed", "cancelled"}
WAIT_SECONDS = 240.0
"""Seconds. A busy machine makes tests slower but must not fail them."""
WORDS = ["sun", "moon", "star", "sky", "cloud", "rain", "snow", "wind"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
GRADE_LENGTH = "def grade(sample, item):\n    return len(set(sample['output_text'])) / 16\n"


def rests(look, seconds=2.0):
    """The result of `look`, once it has been constant for that long."""
    deadline = time.monotonic() + WAIT_SECONDS
    seen, since = look(), time.monotonic()
    while time.monotonic() - since < seconds:
        assert time.monotonic() < deadline, f"it never comes to rest: {seen}"
        time.sleep(0.1)
        if (found := look()) != seen:
            seen, since = found, time.monotonic()
    return seen


def within(seconds, condition):
    """Waits for a condition with a time limit that leaves out processor time taken by other work on the machine."""
    began, stalled = time.monotonic(), 0.0
    while not condition():
        assert time.monotonic() - began < WAIT_SECONDS
        before = time.monotonic()
        time.sleep(0.05)
        stalled += time.monotonic() - before - 0.05
    took = time.monotonic() - began - stalled
    assert took < seconds or took < seconds * slowness(), f"it took {took:.1f} s"


def slowness():
    """Ratio of wall-clock time to processor time at present."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < 0.5:
        pass
    return (time.perf_counter() - began) / 0.5


@dataclass(frozen=True)
class Lab:
    """A running stack and its runs."""

    client: Client
    state: Path

    def submit(self, spec, **options):
        return self.client.submit(spec, **options).id

    def until(self, run_id, condition, seconds=WAIT_SECONDS):
        """Waits until `condition` holds for the run; fails at once if the run ends before."""
        deadline = time.monotonic() + seconds
        while True:
            run = document(self.client.run(run_id))
            if condition(run):
                return run
            if run["state"] in FINAL or time.monotonic() > deadline:
                raise AssertionError(f"run is {run['state']} at step {run['progress']['step']}: {run['reason']} {run['waiting_for']}")
            time.sleep(0.15)

    def ends(self, run_id, state="succeeded", seconds=WAIT_SECONDS):
        """Waits until the run ends; it must end in `state`."""
        run = self.until(run_id, lambda run: run["state"] in FINAL, seconds)
        assert run["state"] == state, run["reason"]
        return run

    def train(self, spec, seconds=WAIT_SECONDS):
        """Submits and waits for success."""
        return self.ends(self.submit(spec), seconds=seconds)

    def cancels(self, run_id):
        """Cancels a run, which must end and free its workers within five seconds."""
        self.client.cancel(run_id)
        within(5.0, lambda: self.client.run(run_id).state in FINAL and self.serving(run_id) == [])
        return self.ends(run_id, "cancelled")

    def serving(self, run_id):
        """Workers assigned to the run."""
        return [worker["worker"] for worker in map(document, self.client.workers()) if worker["run_id"] == run_id]

    def events(self, run_id, kind=None):
        """Data of all events of a type, oldest first."""
        events = document(self.client.events_page(run_id, limit=1000))["data"]
        return [event["data"] for event in events if kind in {None, event["type"]}]

    def samples(self, run_id):
        return document(self.client.samples_page(run_id, limit=1000))["data"]

    def learned(self, run):
        """Whether every step changed the weights."""
        return [step["noop"] for step in self.events(run["id"], "metrics")] == [False] * run["steps"]

    def gone(self, process, seconds=WAIT_SECONDS):
        """Waits until the stack no longer runs `process`."""
        deadline = time.monotonic() + seconds
        while process in json.loads((self.state / "stack.json").read_text())["processes"]:
            assert time.monotonic() < deadline, f"{process} still runs"
            time.sleep(0.2)

    def final_digest(self, run):
        return document(self.client.versions_page(run["id"], after=run["steps"] - 1))["data"][-1]["digest"]


@dataclass(frozen=True)
class Command:
    """Runs the command line on the stack."""

    state: Path
    commands: ForkedCommands

    def __call__(self, *arguments):
        return self.commands.run(*arguments, "--state", self.state)


class World(ThreadingHTTPServer):
    """A user's environment over HTTP, in the tests' process, whose episodes have at most three turns. `asked` has every request."""

    request_queue_size = 128

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), WorldHandler)
        self.asked, self.said = [], {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/words"

    def describe(self):
        return {"name": "words", "version": "1", "determinism": "seeded", "tools": []}

    def open(self, asked):
        session = f"{asked['episode_id']}-{asked['attempt']}"
        self.said[session] = []
        return {"session": session}

    def step(self, asked):
        said = self.said[asked["session"]]
        text = asked["assistant"]["text"]
        reward = len(set(text)) / 16
        said.append(text)
        done = asked["is_last"] or len(said) == 3
        messages = [] if done else [{"role": "user", "content": " and"}]
        return {"reward": reward, "components": {"letters": len(set(text))}, "done": done, "messages": messages}

    def close(self, asked):
        self.said.pop(asked["session"], None)
        return {}


class WorldHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(self.server.describe())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.rpartition("/")[2]
        self.server.asked.append((name, asked))
        self.answer({"open": self.server.open, "step": self.server.step, "close": self.server.close}[name](asked))

    def answer(self, said):
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """Runs `gradbus up` in its own process inside the block; yields its folder."""

    @contextmanager
    def run(*options, **environment):
        state = tmp_path_factory.mktemp("stack") / "state"
        log = state.with_name("up.log")
        command = [sys.executable, "-m", "gradbus.cli", "up", "--port", "0", "--state", str(state), *options]
        given = os.environ | environment
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=given) as up:
            try:
                deadline = time.monotonic() + WAIT_SECONDS
                while "Gradbus is up" not in log.read_text():
                    assert up.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.1)
                yield state
            finally:
                up.send_signal(signal.SIGINT)
                up.wait(WAIT_SECONDS)
                assert "stopped; all state is kept in" in log.read_text()

    return run


@pytest.fixture(scope="session")
def lab_on():
    """Yields a lab on the stack in a folder."""

    @contextmanager
    def lab(state):
        with Client.discover(state) as client:
            yield Lab(client, state)

    return lab


@pytest.fixture(scope="session")
def stack_state(stack):
    """The folder of the shared stack, whose trainer sends deltas although object storage is a folder."""
    with stack(GRADBUS_FOLDER_DELTAS="true") as state:
        yield state


@pytest.fixture(scope="session")
def lab(stack_state, lab_on):
    with lab_on(stack_state) as lab:
        yield lab


@pytest.fixture(scope="session")
def gradbus(stack_state, commands):
    return Command(stack_state, commands)


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level BPE with 300 tokens and a BOS token."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([f"{a} and {b}" for a in WORDS for b in WORDS], vocab_size=300, special_tokens=["<s>", "</s>"])
    bpe._tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory, tokenizer):
    """Model family to folder."""
    size = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, model in {
        "llama": LlamaForCausalLM(LlamaConfig(**size, tie_word_embeddings=True)),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**size, tie_word_embeddings=False)),
    }.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory, tokenizer):
    """A folder whose scores differ from sample to sample, with the policies' tokenizer."""
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, initializer_range=0.4, num_labels=1)
    folder = tmp_path_factory.mktemp("reward") / "model"
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Writes rows as JSON Lines; returns the path."""
    folder = tmp_path_factory.mktemp("rows")

    def write(rows):
        path = folder / f"{len(list(folder.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture(scope="session")
def spec(models, rows):
    """Makes a spec: three steps of four groups of four, scored by a Python grader; the given sections replace fields."""
    train = rows({"prompt": f"{word} and", "answer": word} for word in WORDS)

    def make(**changes):
        body = {
            "name": "short",
            "model": {"path": str(models / "llama")},
            "data": {"train": train},
            "rollout": {"slots": 16, "group_size": 4, "max_new_tokens": 6},
            "reward": {"grader": {"type": "python", "source": GRADE_LENGTH}},
            "schedule": {"groups_per_step": 4, "steps": 3},
            "trainer": {"learning_rate": 1e-3},
            "checkpoint": {"every": 2, "keep": 100},
        }
        for section, fields in changes.items():
            replaces = section in {"reward", "model"} or not isinstance(fields, dict)
            body[section] = fields if replaces else body.get(section, {}) | fields
        return body

    return make


@pytest.fixture(scope="session")
def worlds():
    """Starts a server of the user's on a port."""
    started = []

    def start(port=0):
        started.append(World(port))
        return started[-1]

    yield start
    for server in started:
        server.shutdown()
