"""No path of a server reaches a user."""

import pytest

from gradbus_gateway.resources.public_text import public_text

PATHS = {
    "cannot read /var/cache/gradbus/models/1f/config.json (No such file)": "cannot read config.json (No such file)",
    "the weights in '/tmp/a-b/x.safetensors'": "the weights in 'x.safetensors'",
    "[Errno 2] No such file: '/srv/.gradbus/cache/models/3f'": "[Errno 2] No such file: '3f'",
    "set GRADBUS_CACHE_DIR; (/srv/cache/x) is full, file:///srv/objects/blobs too": "set GRADBUS_CACHE_DIR; (x) is full, blobs too",
    "in folder /srv/cache/": "in folder ",
}
KEPT = [
    "the scorer at http://127.0.0.1:9000/score/v2 failed; check that it runs",
    "the scorer at grpc://scorer.example:9000 does not answer",
    "GET /v1/runs/run-1/events lists them; see /healthz",
    "1200 tokens/s and/or 3/4 of n/a, a path like data/train.jsonl or ~/models/x",
]


@pytest.mark.parametrize("text", PATHS)
def test_a_path_is_cut_down_to_its_last_name(text):
    assert public_text(text) == PATHS[text]


@pytest.mark.parametrize("text", KEPT)
def test_addresses_routes_and_relative_paths_stay(text):
    assert public_text(text) == text
