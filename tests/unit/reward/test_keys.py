import pytest

from gradbus.errors import SettingsError
from gradbus.user_services.keys import ServiceKeys
from gradbus_reward.settings import RewardSettings


@pytest.mark.parametrize(
    ("name", "url", "sent"),
    [
        ("judge.example.org", "https://Judge.Example.org/v1", True),
        ("judge.example.org", "https://judge.example.org:443/v1", True),
        ("judge.example.org", "https://judge.example.org:8443/v1", False),
        ("judge.example.org", "http://judge.example.org/v1", False),
        ("judge.example.org", "https://judge.example.org.evil.example/v1", False),
        ("judge.example.org", "https://judge.example.org@evil.example/v1", False),
        ("HTTP://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", True),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001/v1", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:99999/v1", False),
        ("[::1]", "https://[::1]/v1", True),
        ("https://[::1]:8000", "https://[::1]:8000/v1", True),
    ],
)
def test_a_key_is_for_one_origin(name, url, sent):
    assert ServiceKeys({name: "sk-1"}).headers(url) == ({"authorization": "Bearer sk-1"} if sent else {})


@pytest.mark.parametrize(
    "name", ["", "127.0.0.1:8000", "ftp://a", "http://a/v1", "https://u@a", "a b", "http://a:0", "http://a:99999", "a?b"]
)
def test_another_name_of_a_server_is_refused_without_its_key(name):
    with pytest.raises(SettingsError, match=r"GRADBUS_SERVICE_KEYS: .*is no origin") as refused:
        RewardSettings(service_keys={name: "sk-1"})
    assert "sk-1" not in str(refused.value)
