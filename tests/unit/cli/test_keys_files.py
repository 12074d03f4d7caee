"""Keys of a stack are known to each service that takes them."""

from typer.testing import CliRunner

from gradbus.access.api_keys import read_api_keys
from gradbus.cli.keys import app
from gradbus.deploy.credentials import Credentials, api_keys_files


def test_a_key_is_created_and_revoked_in_every_file(tmp_path):
    Credentials(tmp_path / "secrets")
    files = api_keys_files(tmp_path / "secrets")
    assert [path.parent.name for path in files] == ["gateway", "agent"]
    created = CliRunner().invoke(app, ["create", "agents", "--scope", "runs:write", "--state", str(tmp_path)])
    assert created.exit_code == 0
    records = [read_api_keys(path) for path in files]
    assert records[0] == records[1]
    assert [one.name for one in records[0]] == ["first-start", "agents"]
    assert CliRunner().invoke(app, ["revoke", records[0][1].id, "--state", str(tmp_path)]).exit_code == 0
    assert [len(read_api_keys(path)) for path in files] == [1, 1]


def test_the_copy_follows_the_first_file_at_a_start(tmp_path):
    Credentials(tmp_path / "secrets")
    first, other = api_keys_files(tmp_path / "secrets")
    other.write_text("[]")
    Credentials(tmp_path / "secrets")
    assert other.read_text() == first.read_text()
