"""What `gradbus delete` takes for an age, and what it does when somebody else was faster."""

from datetime import UTC, datetime, timedelta

import pytest

from gradbus.cli.delete import _delete, _moment
from gradbus.errors import ApiError, StackError, api_error


class Gateway:
    """Refuses a deletion with this status."""

    def __init__(self, status):
        self._status = status

    def delete(self, run_id):
        raise api_error(self._status, {"title": "Refused"})


@pytest.mark.parametrize(("given", "age"), [("30d", timedelta(days=30)), ("12h", timedelta(hours=12)), ("90m", timedelta(minutes=90))])
def test_an_age_is_counted_back_from_now(given, age):
    assert abs(_moment(given) - (datetime.now(UTC) - age)) < timedelta(minutes=1)


def test_a_date_without_a_zone_is_one_of_this_machine():
    assert _moment("2026-11-01") == datetime(2026, 11, 1).astimezone()
    assert _moment("2026-11-01T08:00+01:00") == datetime(2026, 11, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize("given", ["yesterday", "30", "999999d", ""])
def test_what_is_neither_is_refused(given):
    with pytest.raises(StackError, match="is no age and no date; give for example 30d"):
        _moment(given)


def test_a_run_that_is_gone_by_now_is_deleted_and_any_other_refusal_is_passed_on():
    _delete(Gateway(404), "run-1")
    with pytest.raises(ApiError, match="409"):
        _delete(Gateway(409), "run-1")
