"""Specs and groups for the conductor's parts."""

import pytest

from gradbus.spec import parse_spec


@pytest.fixture(scope="session")
def make_spec():
    def make(**sections):
        body = {
            "name": "counting",
            "model": {"path": "model"},
            "data": {"train": "train.jsonl"},
            "reward": {"service": "grpc://127.0.0.1:1"},
            "schedule": {"steps": 4, "groups_per_step": 2},
        }
        return parse_spec(body | sections)

    return make
