"""A service that is started with a wrong setting says what to do in one line of its log, as JSON, and ends with status 78 (EX_CONFIG)."""

import json
import os
import subprocess
import sys

import pytest

from gradbus.deploy.roles import ROLES

NO_NUMBER = "GRADBUS_FROZEN_SECONDS", "soon", "give it a valid value or leave it out"
NO_OBJECT = "GRADBUS_RPC_CALLERS", "conductor", "write a list as"


OFTEN = {"gateway", "rollout", "trainer"}
"""One of each size; the others read their settings in the same way."""


@pytest.mark.parametrize(
    ("role", "wrong"),
    [
        *(pytest.param(role, NO_NUMBER, marks=[] if role in OFTEN else pytest.mark.slow) for role in ROLES),
        ("reward", NO_OBJECT),
    ],
)
def test_a_wrong_setting_ends_a_service_with_a_line_that_says_what_to_do(role, wrong):
    variable, value, advice = wrong
    environment = {"PATH": os.environ["PATH"], variable: value}
    command = [sys.executable, "-m", ROLES[role].module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert done.returncode == os.EX_CONFIG
    assert (line["event"], line["level"], line["service"]) == ("stopped", "error", role)
    assert line["error"].startswith(f"SettingsError: {variable}")
    assert advice in line["error"]
