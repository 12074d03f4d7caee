"""Certificates that the authority issues are kept while they fit, and replaced before they expire."""

import os
import stat
import subprocess
import sys
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from gradbus.deploy import authority
from gradbus.deploy.authority import Authority
from gradbus.errors import SettingsError
from gradbus.tls import FILES, read_certificate, read_identity

NAMES = ("gateway", "localhost", "127.0.0.1", "::1")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "authority").mkdir()
    return tmp_path / "authority"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gateway").mkdir()
    return tmp_path / "gateway"


@pytest.fixture
def issued(root, folder):
    Authority(root).issue(folder, NAMES)
    return contents(folder)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def test_the_identity_is_accepted_and_lasts_a_year(folder, issued):
    assert 364 < read_identity(folder).remaining / 86_400 < 366


def test_only_the_owner_reads_keys_and_certificates(root, folder, issued):
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*root.iterdir(), *folder.iterdir())} == {0o600}


def test_the_next_start_keeps_it(root, folder, issued):
    Authority(root).issue(folder, NAMES)
    assert contents(folder) == issued


def test_it_is_renewed_by_the_same_authority_before_it_expires(root, folder, issued, monkeypatch):
    monkeypatch.setattr(authority, "_RENEWED_AT", timedelta(days=366))
    Authority(root).issue(folder, NAMES)
    renewed = contents(folder)
    assert [name for name in FILES if renewed[name] != issued[name]] == ["tls.crt", "tls.key"]
    assert read_identity(folder).remaining > 0


@pytest.mark.parametrize("lost", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_lost_is_made_again(root, folder, issued, lost):
    (folder / lost).unlink()
    Authority(root).issue(folder, NAMES)
    assert read_identity(folder).remaining > 0


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
def test_a_file_that_cannot_be_read_is_made_again(root, folder, issued, name):
    (folder / name).write_text("no PEM")
    Authority(root).issue(folder, NAMES)
    assert read_identity(folder).remaining > 0


def test_a_key_that_is_not_the_certificates_is_replaced_with_it(root, folder, issued, tmp_path):
    (tmp_path / "other").mkdir()
    Authority(root).issue(tmp_path / "other", NAMES)
    (folder / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    Authority(root).issue(folder, NAMES)
    assert read_identity(folder).remaining > 0


def test_other_names_need_another_certificate(root, folder, issued):
    Authority(root).issue(folder, (*NAMES, "gradbus.example"))
    assert contents(folder)["tls.crt"] != issued["tls.crt"]


def test_an_address_of_a_browser_is_named_without_brackets(root, folder):
    Authority(root).issue(folder, ["gateway", "[::1]"])
    kept = contents(folder)
    Authority(root).issue(folder, ["gateway", "::1"])
    assert contents(folder) == kept


def test_a_name_that_no_certificate_takes_is_refused_with_what_to_write(root, folder):
    with pytest.raises(SettingsError, match=r"'münchen.example' .* write the name as browsers send it: xn--"):
        Authority(root).issue(folder, ["gateway", "münchen.example"])


def test_a_new_authority_replaces_every_certificate(root, folder, issued):
    for path in root.iterdir():
        path.unlink()
    Authority(root).issue(folder, NAMES)
    assert all(contents(folder)[name] != issued[name] for name in FILES)
    assert read_identity(folder).remaining > 0


@pytest.mark.parametrize("name", ["ca.crt", "ca.key"])
def test_an_authority_that_cannot_be_read_is_named(root, folder, issued, name):
    (root / name).write_text("no PEM")
    with pytest.raises(SettingsError, match=r"holds no authority that can be read .* delete it, and a new one is made"):
        Authority(root)


def issue(tmp_path, name, of="ours"):
    for path in (tmp_path / name, tmp_path / of):
        path.mkdir(exist_ok=True)
    Authority(tmp_path / of).issue(tmp_path / name, [name])
    return tmp_path / name


def test_a_process_refuses_its_own_certificate_when_it_has_expired(tmp_path, monkeypatch):
    monkeypatch.setattr(authority, "_LASTS", timedelta(minutes=-1))
    folder = issue(tmp_path, "reward")
    for read in (read_identity, read_certificate):
        with pytest.raises(SettingsError, match=r"tls\.crt is not valid: certificate has expired; replace it with one"):
            read(folder)


def test_a_process_refuses_a_certificate_that_its_authority_has_not_issued(tmp_path):
    folder = issue(tmp_path, "reward")
    foreign = issue(tmp_path, "conductor", of="another")
    (folder / "ca.crt").write_bytes((foreign / "ca.crt").read_bytes())
    with pytest.raises(SettingsError, match=r"not valid: unable to get local issuer certificate; .*docs/deploy.md"):
        read_identity(folder)
    assert read_certificate(folder).remaining > 0  # what the gateway shows to browsers may be anybody's


def test_a_process_refuses_a_key_of_another_certificate(tmp_path):
    folder, other = issue(tmp_path, "reward"), issue(tmp_path, "conductor")
    (folder / "tls.key").write_bytes((other / "tls.key").read_bytes())
    with pytest.raises(SettingsError, match="key values mismatch"):
        read_identity(folder)


def test_a_key_with_a_passphrase_is_refused_and_no_passphrase_is_asked_for(tmp_path):
    folder = issue(tmp_path, "reward")
    key = load_pem_private_key((folder / "tls.key").read_bytes(), None)
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    code = f"from gradbus.tls import *; read_certificate(Path({str(folder)!r}))"
    parent, child = os.openpty()  # OpenSSL asks on the terminal, if there is one
    try:
        done = subprocess.run([sys.executable, "-c", code], stdin=child, stderr=subprocess.PIPE, timeout=60, text=True, check=False)
    finally:
        os.close(parent)
        os.close(child)
    assert "SettingsError" in done.stderr
    assert "the key without a passphrase" in done.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_unreadable_file_is_named(tmp_path, name):
    folder = issue(tmp_path, "reward")
    (folder / name).write_text("no PEM")
    with pytest.raises(SettingsError, match="write PEM files that belong together"):
        read_identity(folder)
    (folder / name).unlink()
    with pytest.raises(SettingsError, match=f"cannot read .*{name} .* holds tls.crt, tls.key, ca.crt"):
        read_identity(folder)
