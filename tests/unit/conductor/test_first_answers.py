"""The first call to a service waits for it; the status names the service as long as that lasts."""

from contextlib import suppress

from gradbus_conductor.groups.first_answers import FirstAnswers


def test_only_calls_before_the_first_end_wait():
    first = FirstAnswers()
    with (
        first.call("the scorer", 10.0) as is_first,
        first.call("the scorer", 10.0) as is_also_first,
        first.call("the reference", 120.0) as is_other,
    ):
        assert (is_first, is_also_first, is_other) == (True, True, True)
    with first.call("the scorer", 10.0) as is_first:
        assert not is_first


def test_a_service_is_named_until_a_first_call_ends_also_in_failure():
    first = FirstAnswers()
    assert first.waiting_for(-1.0) == ""
    with suppress(OSError), first.call("the scorer at grpc://a:1", 3605.0):
        assert first.waiting_for(60.0) == ""
        assert first.waiting_for(-1.0).startswith("the scorer at grpc://a:1, which has not answered yet")
        assert first.waiting_for(-1.0).endswith("may take 3605 s")
        raise OSError("away")
    assert first.waiting_for(-1.0) == ""
