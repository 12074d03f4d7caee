"""Where the client finds its gateway."""

import pytest

from gradbus.client import find_gateway
from gradbus.errors import StackError


@pytest.fixture
def state(tmp_path, monkeypatch):
    for name in ("GRADBUS_URL", "GRADBUS_KEY", "GRADBUS_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".gradbus"
    (folder / "secrets").mkdir(parents=True)
    (folder / "gateway.json").write_text('{"url": "http://127.0.0.1:1"}')
    (folder / "secrets" / "api-key").write_text("id.secret\n")
    return folder


def test_the_folder_here_is_the_default(state):
    assert find_gateway() == ("http://127.0.0.1:1", "id.secret")


def test_the_environment_goes_first_and_a_named_folder_before_it(state, monkeypatch):
    monkeypatch.setenv("GRADBUS_URL", "http://far")
    monkeypatch.setenv("GRADBUS_KEY", "k.s")
    assert find_gateway() == ("http://far", "k.s")
    assert find_gateway(state) == ("http://127.0.0.1:1", "id.secret")


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_without_a_stack_it_says_how_to_get_one(state, content):
    (state / "gateway.json").unlink() if content is None else (state / "gateway.json").write_text(content)
    with pytest.raises(StackError, match="gradbus up"):
        find_gateway()


@pytest.mark.parametrize(
    ("name", "value", "missing"), [("GRADBUS_URL", "http://far", "GRADBUS_KEY"), ("GRADBUS_KEY", "k.s", "GRADBUS_URL")]
)
def test_half_an_address_is_no_address(state, monkeypatch, name, value, missing):
    monkeypatch.setenv(name, value)
    with pytest.raises(StackError, match=f"{missing} is not set"):
        find_gateway()
    assert find_gateway(state)[1] == "id.secret"


@pytest.mark.parametrize(
    "url", ["localhost:8080", "http://", "http://[::1", "ftp://there", "http://there:80a", "http://there:99999", f"http://{'a' * 64}"]
)
def test_what_is_no_address_is_named_so(state, monkeypatch, url):
    monkeypatch.setenv("GRADBUS_URL", url)
    monkeypatch.setenv("GRADBUS_KEY", "k.s")
    with pytest.raises(StackError, match="not an address"):
        find_gateway()
