import json
import stat
import subprocess
import sys

import pytest
from cryptography import x509

from gradbus.access import BUFFER_USERS, NATS_USERS
from gradbus.access.api_keys import find_api_key, read_api_keys
from gradbus.deploy.secrets import api_key, authority, grafana_password, write_secrets
from gradbus.errors import SettingsError
from gradbus.tls import read_identity

SERVICES = ("gateway", "conductor", "rollout", "trainer", "reward", "environment", "agent", "reference", "weight_store", "supervisor")


@pytest.fixture
def state(tmp_path):
    write_secrets(tmp_path)
    return tmp_path


def files(state):
    return {str(path.relative_to(state)): path.read_bytes() for path in sorted(state.rglob("*")) if path.is_file()}


def test_a_second_start_changes_nothing(state):
    before = files(state)
    write_secrets(state)
    assert files(state) == before


def test_only_the_owner_reads(state):
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (state / "secrets").rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_grafanas_password_is_made_once_and_printed(state):
    password = grafana_password(state)
    assert len(password) >= 32
    command = [sys.executable, "-m", "gradbus.deploy", "grafana", "--state", str(state)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == password


def test_before_the_first_start_there_is_no_password(tmp_path):
    with pytest.raises(SettingsError, match="start the stack first"):
        grafana_password(tmp_path)


def test_nats_is_told_of_one_user_a_role_with_its_password(state):
    text = (state / "secrets/nats/nats.conf").read_text()
    assert "sync_interval: always" in text
    for role in NATS_USERS:
        assert f'"user": "{role}", "password": "{(state / "secrets" / role / "gradbus_nats_password").read_text()}"' in text


def test_the_buffer_is_told_hashes_and_writes_every_answer_to_disk(state):
    users = (state / "secrets/buffer/users.acl").read_text()
    assert [line.split()[1] for line in users.splitlines()] == ["default", *BUFFER_USERS]
    for role in BUFFER_USERS:
        assert (state / "secrets" / role / "gradbus_buffer_password").read_text() not in users
    assert "appendfsync always" in (state / "secrets/buffer/buffer.conf").read_text()


def test_services_that_store_objects_have_the_key_that_the_server_knows_and_those_that_run_users_code_have_none(state):
    server = json.loads((state / "secrets/objects/s3.json").read_text())["identities"][0]
    for role in SERVICES:
        kept = state / "secrets" / role / "gradbus_objects_credentials"
        if role in {"reward", "environment", "agent"}:
            assert not kept.exists()
            continue
        pair = json.loads(kept.read_text())
        assert server["credentials"] == [{"accessKey": pair["access_key_id"], "secretKey": pair["secret_access_key"]}]
        assert (state / "secrets/objects/access-key").read_text() == f"{pair['access_key_id']},{pair['secret_access_key']}"
    assert all(action.endswith(":gradbus") for action in server["actions"])


def test_each_role_and_server_has_a_certificate_of_one_authority_with_its_host_name(state):
    for role in (*SERVICES, "nats", "buffer"):
        folder = state / "secrets" / role
        assert read_identity(folder).remaining > 0
        names = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).extensions
        hosts = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        more = {"gateway": ["localhost"], "agent": ["localhost"], "nats": ["*.nats-peers"]}
        assert hosts == [role.replace("_", "-"), *more.get(role, [])]
        assert (folder / "ca.crt").read_text().strip() == authority(state).strip()
    assert [path.parent.name for path in (state / "secrets").rglob("ca.key")] == ["authority"]


def test_the_gateways_certificate_has_the_names_under_which_it_is_served(state):
    write_secrets(state, ["gradbus.example"])
    names = x509.load_pem_x509_certificate((state / "secrets/gateway/tls.crt").read_bytes()).extensions
    assert "gradbus.example" in names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)


def test_the_servers_take_clients_with_certificates_alone(state):
    assert "verify: true, handshake_first: true" in (state / "secrets/nats/nats.conf").read_text()
    buffer = (state / "secrets/buffer/buffer.conf").read_text().splitlines()
    assert {"port 0", "tls-port 6379", "tls-auth-clients yes"} <= set(buffer)


@pytest.mark.parametrize("hosts", ["gradbus.example", '{"a": 1}', '["a", 1]'])
def test_the_command_refuses_names_that_are_no_list(state, hosts):
    command = [sys.executable, "-m", "gradbus.deploy", "secrets", "--state", str(state), "--served-hosts", hosts]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith('--served-hosts: write a JSON list of names, like ["gradbus.example"]')


def test_the_command_prints_the_authority(state):
    command = [sys.executable, "-m", "gradbus.deploy", "authority", "--state", str(state)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert printed.strip() == (state / "secrets/authority/ca.crt").read_text().strip()


def test_the_key_is_one_the_gateway_accepts(state):
    assert find_api_key(read_api_keys(state / "secrets/gateway/api-keys.json"), api_key(state)).allows("admin")


def test_no_key_before_the_first_start_says_what_to_do(tmp_path):
    with pytest.raises(SettingsError, match="start the stack first"):
        api_key(tmp_path)


def test_a_folder_that_cannot_be_written_says_so_and_what_to_do(tmp_path):
    (tmp_path / "secrets").write_text("a file")
    with pytest.raises(SettingsError, match="mount a volume there"):
        write_secrets(tmp_path)


def test_the_command_prints_the_key_and_nothing_else(state):
    done = subprocess.run(
        [sys.executable, "-m", "gradbus.deploy", "key", "--state", str(state)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{api_key(state)}\n"


def test_the_command_ends_with_a_message_and_status_1(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gradbus.deploy", "key", "--state", str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("there is no API key")
