"""Secrets are files; a variable outranks a file, an argument outranks both."""

import pytest

from gradbus.errors import SettingsError
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


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("GRADBUS_LOG_LEVEL", "loud", "GRADBUS_LOG_LEVEL: Input should be 'DEBUG', 'INFO'"),
        ("GRADBUS_RPC_CALLERS", "trainer", "GRADBUS_RPC_CALLERS is not JSON"),
        ("GRADBUS_RPC_CALLERS", '["trainer"]', "GRADBUS_RPC_CALLERS: Input should be a valid dictionary"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_by_its_variable_and_not_shown(monkeypatch, variable, value, words):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=words) as refused:
        ProcessSettings()
    assert value not in str(refused.value)


def test_a_log_level_may_be_written_small(monkeypatch):
    monkeypatch.setenv("GRADBUS_LOG_LEVEL", "warning")
    assert ProcessSettings().log_level == "WARNING"
