"""Settings of limits and quotas."""

import pytest

from gradbus.errors import SettingsError
from gradbus_gateway.settings import ConnectionLimits, Quotas, RequestLimits


@pytest.mark.parametrize(
    ("group", "variable"),
    [
        (ConnectionLimits, "GRADBUS_CONNECTIONS_TOTAL"),
        (RequestLimits, "GRADBUS_LIMIT_FOLLOWERS"),
        (Quotas, "GRADBUS_QUOTA_RUNS"),
    ],
)
def test_a_wrong_value_is_refused_under_the_name_of_its_variable(monkeypatch, group, variable):
    monkeypatch.setenv(variable, "-1")
    with pytest.raises(SettingsError, match=variable):
        group()


def test_a_variable_sets_its_limit(monkeypatch):
    monkeypatch.setenv("GRADBUS_LIMIT_FOLLOWERS", "7")
    assert RequestLimits().followers == 7
