import socket
import sys

import pytest

from gradbus.embedded.ports import Ports, is_free
from gradbus.errors import StackError


@pytest.fixture
def taken_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


def test_a_remembered_port_is_kept():
    first = Ports({})
    port = first["nats"]
    first.release()
    assert Ports(first.known)["nats"] == port


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two stacks that start at once may choose one port")
def test_a_port_that_another_stack_has_chosen_and_not_yet_taken_is_given_to_nobody_else():
    first = Ports({})
    port = first["nats"]
    assert is_free(port)
    assert Ports({"nats": port})["nats"] != port
    first.release()
    assert Ports({"nats": port})["nats"] == port


def test_a_remembered_port_that_somebody_took_is_replaced(taken_port):
    ports = Ports({"nats": taken_port})
    assert ports["nats"] != taken_port
    assert is_free(ports["nats"])
    assert ports.known["nats"] == ports["nats"]


def test_chosen_ports_differ_and_lie_below_those_of_outgoing_connections():
    ports = Ports({})
    chosen = [ports[f"name-{number}"] for number in range(50)]
    assert len(set(chosen)) == 50
    assert all(20_000 <= port < 32_768 for port in chosen)


def test_a_port_that_was_asked_for_is_given_or_refused(taken_port):
    ports = Ports({})
    free = ports["other"]
    ports.claim("gateway", free, "--port")
    assert ports["gateway"] == free
    with pytest.raises(StackError, match=f"port {taken_port} is taken.*--port 0"):
        ports.claim("gateway", taken_port, "--port")


def test_a_damaged_memory_is_no_reason_to_fail():
    assert isinstance(Ports({"nats": "no number"})["nats"], int)
