"""Which connections count, and which one is displaced."""

import pytest

from gradbus_gateway.http.connection_table import ConnectionTable
from gradbus_gateway.settings import ConnectionLimits


class Connection:
    def __init__(self, peer="192.0.2.1"):
        self.peer = peer
        self.displaced = ""

    def displace(self, cause):
        self.displaced = cause

    def check(self, now):
        pass


@pytest.fixture
def table():
    return ConnectionTable(ConnectionLimits(total=3, per_address=2))


def opened(table, *peers):
    connections = [Connection(peer) for peer in peers]
    for connection in connections:
        table.opened(connection)
    return connections


def test_the_one_that_has_waited_longest_makes_room(table):
    first, second, third = opened(table, "a", "b", "c")
    table.works(first)
    table.waits(first)  # its request is over
    (fourth,) = opened(table, "d")
    assert [one.displaced for one in (first, second, third, fourth)] == ["", "connections", "", ""]


def test_one_with_a_request_in_progress_is_not_displaced(table):
    for connection in opened(table, "a", "a"):
        table.works(connection)
    (refused,) = opened(table, "a")
    assert refused.displaced == "address_connections"
    assert not opened(table, "b")[0].displaced


def test_one_that_was_refused_or_closed_counts_no_more_whatever_it_still_does(table):
    for connection in opened(table, "a", "a"):
        table.works(connection)
    for _ in range(5):
        (refused,) = opened(table, "a")
        table.works(refused)  # it had sent a request before it knew
        table.waits(refused)
        table.closed(refused)
    assert opened(table, "a")[0].displaced == "address_connections"
    assert len(list(table)) == 2
