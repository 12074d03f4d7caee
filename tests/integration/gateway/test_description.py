"""The gateway does what its OpenAPI document says, and the document says all of it.

Schemathesis sends requests, valid and not, to every route with every check that it has.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.buffer import keys
from gradbus.bus import subjects
from gradbus.experience.records import seal
from gradbus_gateway.app import create_app

CONFIG = """
seed = 1
max-stream-events = 10
headers = {{ Authorization = "Bearer {key}" }}
generation = {{ max-examples = 6, no-shrink = true, database = "none" }}
cache = {{ enabled = false }}

[dictionaries.runs]
values = [{runs}]

[parameters."path.run_id"]
dictionary = "runs"
probability = 0.7

# What a spec names has to be stored, so a document that fits the schema may still be refused. One with more sources than the schema allows
# is larger than a body may be.
[[operations]]
include-name = ["POST /v1/runs", "POST /v1/spec-checks", "POST /v1/plans", "PUT /v1/runs/{{run_id}}/reward"]
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429"]

# The first step may be later than the last one.
[[operations]]
include-name = ["GET /v1/runs/{{run_id}}/history"]
checks.positive_data_acceptance.enabled = false

# Of a thousand specs at the limits of the schema.
[[operations]]
include-name = [{few}]
phases = {{ coverage = {{ enabled = false }} }}
"""
SAME_BODY = '"POST /v1/spec-checks", "POST /v1/plans"'
"""They check it as POST /v1/runs does."""
HOOKS = """
import schemathesis

@schemathesis.serializer("application/toml")
def as_text(context, value):
    return str(value).encode()
"""


@pytest.fixture
async def damaged(submitted, bus, buffer, set_state):
    """Id of a finished run with an event and a group that nobody can read."""
    await bus.jetstream.publish(subjects.events(submitted["id"]), b"\xff")
    await buffer.xadd(keys.experience(submitted["id"]), {"i": 0, "r": seal(b"\xff")})
    await set_state(submitted["id"], "succeeded")
    return submitted["id"]


@pytest.mark.parametrize("few", [f'{SAME_BODY}, "POST /v1/runs"', pytest.param(SAME_BODY, marks=pytest.mark.slow)], ids=["short", "whole"])
def test_every_route_answers_as_described(stack, gateway_with, damaged, tmp_path, few):
    unlimited = gateway_with(limit_requests_per_second=0, limit_unauthenticated_per_second=0, limit_sign_ins_per_minute=0)
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(key=stack.key, runs=f'"{damaged}"', few=few))
    (tmp_path / "hooks.py").write_text(HOOKS)
    command = [Path(sys.executable).with_name("schemathesis"), "run", f"{unlimited}/openapi.json"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def references(node):
    if isinstance(node, dict):
        yield from [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from references(child)


def test_every_reference_leads_to_a_part_of_the_document():
    document = create_app().openapi()
    for reference in set(references(document)):
        part = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    assert "#/components/schemas/RunSpec" in references(document["paths"]["/v1/runs"]["post"]["requestBody"])


def test_every_route_lists_its_problems():
    routes = create_app().openapi()["paths"]
    for path, item in routes.items():
        for method, operation in item.items():
            expected = {"405", "413"} | ({"401", "403", "422", "429", "503"} if path.startswith("/v1") else set())
            expected |= {"404"} if "{" in path else set()
            expected |= {"409"} if path.endswith(("/cancel", "/pause", "/resume", "/export")) else set()
            expected |= {"400"} if (method, path) in {("post", "/v1/runs"), ("post", "/v1/files")} else set()
            assert expected <= operation["responses"].keys(), (method, path)
