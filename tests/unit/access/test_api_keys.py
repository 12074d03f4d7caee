"""Keys are shown once and kept as hashes."""

import stat

import pytest

from gradbus.access.api_keys import SCOPES, find_api_key, new_api_key, read_api_keys, write_api_keys
from gradbus.errors import SettingsError


def test_a_token_finds_its_record_and_no_other():
    (first, one), (second, two) = new_api_key("a", ["runs:read"]), new_api_key("b", SCOPES)
    assert find_api_key([one, two], first) == one
    assert find_api_key([one, two], second) == two
    assert find_api_key([one], second) is None


@pytest.mark.parametrize("token", ["", ".", "x", "x.y", "ä.ö"])
def test_what_is_no_token_finds_nothing(token):
    assert find_api_key([new_api_key("a", SCOPES)[1]], token) is None


def test_another_secret_or_the_hash_itself_does_not_open():
    token, record = new_api_key("a", SCOPES)
    assert find_api_key([record], token + "x") is None
    assert find_api_key([record], f"{record.id}.{record.sha256}") is None


def test_the_file_holds_no_secret_and_is_its_owner_s_alone(tmp_path):
    token, record = new_api_key("a", ["runs:read"])
    write_api_keys(tmp_path / "keys.json", [record])
    assert token.partition(".")[2] not in (tmp_path / "keys.json").read_text()
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    assert read_api_keys(tmp_path / "keys.json") == [record]


def test_admin_may_do_everything_others_what_they_name():
    assert new_api_key("a", ["admin"])[1].allows("files:write")
    assert not new_api_key("a", ["runs:read"])[1].allows("runs:write")


@pytest.mark.parametrize("scopes", [[], ["runs:raed"]])
def test_scopes_that_cannot_be_given_are_refused(scopes):
    with pytest.raises(SettingsError, match="choose from"):
        new_api_key("a", scopes)


@pytest.mark.parametrize("content", ["", "{}", '[{"id": "x"}]'])
def test_a_broken_file_says_what_to_do(tmp_path, content):
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(SettingsError, match="keys"):
        read_api_keys(tmp_path / "keys.json")
