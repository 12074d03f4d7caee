"""The keys of the file, as it changes."""

from gradbus.access import keyring as module
from gradbus.access.api_keys import new_api_key, read_api_keys, write_api_keys
from gradbus.access.keyring import Keyring


def test_a_key_that_is_created_while_the_file_is_read_is_found(tmp_path, monkeypatch):
    path = tmp_path / "keys.json"
    write_api_keys(path, [])
    token, record = new_api_key("late", ["runs:read"])

    def read_and_change(path):
        records = read_api_keys(path)
        write_api_keys(path, [record])
        return records

    monkeypatch.setattr(module, "read_api_keys", read_and_change)
    keyring = Keyring(path)
    monkeypatch.undo()
    assert keyring.find(token) == record
