"""Secrets are files; a variable outranks a file, an argument outranks both."""

import pytest

from gradbus.process import ProcessSettings


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADBUS_SECRETS_DIR", str(tmp_path))
    (tmp_path / "gradbus_nats_password").write_text("of-the-file\n")
    return tmp_path


def test_a_secret_is_read_from_its_file(secrets):
    assert ProcessSettings().bus.password == "of-the-file"


def test_a_variable_outranks_the_file(secrets, monkeypatch):
    monkeypatch.setenv("GRADBUS_NATS_PASSWORD", "of-the-variable")
    assert ProcessSettings().bus.password == "of-the-variable"
    assert ProcessSettings(nats_password="given").bus.password == "given"


def test_without_a_folder_the_defaults_hold(monkeypatch):
    monkeypatch.delenv("GRADBUS_SECRETS_DIR", raising=False)
    assert ProcessSettings().rpc.callers == {}


def test_a_secret_is_not_shown(secrets):
    assert "of-the-file" not in repr(ProcessSettings())
