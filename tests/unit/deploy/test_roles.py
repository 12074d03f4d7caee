"""The table of roles agrees with the secrets and with the permissions."""

import subprocess
import sys

import pytest

from gradbus.access import CALLERS, NATS_USERS
from gradbus.deploy.roles import ROLES, address_variable, container_placement, role_environment
from gradbus.deploy.secrets import write_secrets


def test_every_server_and_every_user_is_a_role():
    assert {role.name for role in ROLES.values() if role.serves == "grpc"} == set(CALLERS)
    assert set(NATS_USERS) - {"supervisor"} == {role.name for role in ROLES.values() if role.uses_nats}


def test_a_role_holds_the_secrets_that_it_needs_and_no_others(tmp_path):
    write_secrets(tmp_path)
    for role in ROLES.values():
        assert {path.name for path in (tmp_path / "secrets" / role.name).iterdir()} == set(role.secrets), role.name


@pytest.mark.parametrize("name", ROLES)
def test_a_role_gets_the_addresses_of_the_servers_that_it_uses(name):
    role = ROLES[name]
    environment = role_environment(role, container_placement(role))
    assert ("GRADBUS_NATS_URL" in environment) == ("GRADBUS_NATS_USER" in environment) == role.uses_nats
    assert ("GRADBUS_BUFFER_URL" in environment) == ("GRADBUS_BUFFER_USER" in environment) == role.uses_buffer
    assert set(map(address_variable, CALLERS)) & environment.keys() == set(map(address_variable, role.calls))
    assert ("GRADBUS_LISTEN" in environment) == bool(role.serves)


def test_callers_reach_the_address_that_a_server_listens_on():
    for server in CALLERS:
        host, _, port = container_placement(ROLES["conductor"]).grpc[server].partition(":")
        assert (host, f"0.0.0.0:{port}") == (ROLES[server].hostname, container_placement(ROLES[server]).listen)


def test_the_table_is_read_without_torch():
    code = "import sys, gradbus.deploy.roles; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
