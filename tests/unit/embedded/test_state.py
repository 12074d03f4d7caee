import os

import pytest

from gradbus.embedded.state import StateFolder
from gradbus.errors import StackError


def test_a_folder_in_use_is_refused_with_the_owner_and_what_to_do(tmp_path):
    owner = StateFolder(tmp_path)
    owner.lock()
    assert StateFolder(tmp_path).owner() == os.getpid()
    with pytest.raises(StackError, match=rf"pid {os.getpid()}\).*gradbus down --state"):
        StateFolder(tmp_path).lock()


def test_an_unlocked_folder_has_no_owner_and_can_be_used_again(tmp_path):
    owner = StateFolder(tmp_path)
    assert owner.owner() is None
    owner.lock()
    owner.unlock()
    assert owner.owner() is None
    StateFolder(tmp_path).lock()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="choose another with --state"):
        StateFolder(tmp_path / "file" / "state").lock()


@pytest.mark.parametrize("damaged", [b"", b"{", b"[1]", b"\xff"])
def test_a_damaged_file_reads_as_empty(tmp_path, damaged):
    (tmp_path / "ports.json").write_bytes(damaged)
    assert StateFolder(tmp_path).read("ports.json") == {}


def test_what_was_written_is_read(tmp_path):
    folder = StateFolder(tmp_path)
    folder.write("ports.json", {"nats": 1})
    folder.write("ports.json", {"nats": 2})
    assert folder.read("ports.json") == {"nats": 2}
    folder.remove("ports.json")
    folder.remove("ports.json")
    assert folder.read("ports.json") == {}


def test_a_large_log_is_set_aside(tmp_path):
    folder = StateFolder(tmp_path)
    folder.logs.mkdir()
    log = folder.log_file("gateway")
    log.write_bytes(b"x" * (11 << 20))
    assert not folder.log_file("gateway").exists()
    assert log.with_suffix(".log.1").stat().st_size == 11 << 20


def test_the_tail_of_a_log(tmp_path):
    folder = StateFolder(tmp_path)
    folder.logs.mkdir()
    assert folder.log_tail("gateway") == "(the log is empty)"
    folder.log_file("gateway").write_text("\n".join(f"line {number}" for number in range(20_000)))
    assert folder.log_tail("gateway", lines=2) == "line 19998\nline 19999"
