import json
import stat

import pytest

from gradbus.access import BUFFER_USERS, CALLERS, NATS_USERS
from gradbus.access.api_keys import find_api_key, read_api_keys
from gradbus.deploy.credentials import Credentials, api_keys_files
from gradbus.rpc import token_hash


def content(root):
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_only_the_owner_can_read_anything(tmp_path):
    Credentials(tmp_path / "secrets")
    entries = [tmp_path / "secrets", *(tmp_path / "secrets").rglob("*")]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in entries}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_open_modes_are_closed_again(tmp_path):
    Credentials(tmp_path)
    password = tmp_path / "trainer" / "gradbus_nats_password"
    password.chmod(0o644)
    tmp_path.chmod(0o755)
    Credentials(tmp_path)
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_secrets_are_made_once(tmp_path):
    first = Credentials(tmp_path)
    before = content(tmp_path)
    assert Credentials(tmp_path).api_key == first.api_key
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("role", "files"),
    [
        ("supervisor", {"gradbus_nats_password", "gradbus_buffer_password"}),
        ("conductor", {"gradbus_nats_password", "gradbus_buffer_password", "gradbus_rpc_token"}),
        ("rollout", {"gradbus_nats_password", "gradbus_buffer_password", "gradbus_rpc_token"}),
        ("reward", {"gradbus_rpc_callers"}),
        ("environment", {"gradbus_rpc_callers"}),
        ("agent", {"gradbus_rpc_callers", "api-keys.json"}),
        ("reference", {"gradbus_nats_password", "gradbus_rpc_callers"}),
        ("weight_store", {"gradbus_nats_password", "gradbus_rpc_callers"}),
    ],
)
def test_a_process_gets_what_it_needs_and_no_more(tmp_path, role, files):
    folder = Credentials(tmp_path).folder(role)
    assert {path.name for path in folder.iterdir()} == files


def test_passwords_differ_from_user_to_user(tmp_path):
    made = Credentials(tmp_path)
    passwords = [made.nats_password(role) for role in NATS_USERS] + [made.buffer_password(role) for role in BUFFER_USERS]
    assert len(set(passwords)) == len(passwords)
    assert min(map(len, passwords)) >= 43


def test_a_server_knows_its_callers_by_the_hash_of_a_token_that_each_has_alone(tmp_path):
    made = Credentials(tmp_path)
    tokens = {role: (tmp_path / role / "gradbus_rpc_token").read_text() for role in ("gateway", "conductor", "rollout", "trainer")}
    assert len(set(tokens.values())) == len(tokens)
    for server, callers in CALLERS.items():
        known = json.loads((made.folder(server) / "gradbus_rpc_callers").read_text())
        assert known == {role: token_hash(tokens[role]) for role in callers}


def test_the_first_api_key_is_one_the_gateway_accepts_and_its_token_is_not_in_the_records(tmp_path):
    made = Credentials(tmp_path)
    record = find_api_key(read_api_keys(api_keys_files(tmp_path)[0]), made.api_key)
    assert record is not None
    assert record.allows("admin")
    assert made.api_key.partition(".")[2] not in api_keys_files(tmp_path)[0].read_text()
    assert (tmp_path / "api-key").read_text() == made.api_key
