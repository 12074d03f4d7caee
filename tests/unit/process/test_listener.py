"""What the connections of a listener inherit."""

import socket

from gradbus.process.listener import listen


def test_a_client_that_reads_nothing_loses_its_connection():
    with listen("127.0.0.1:0", "GRADBUS_LISTEN") as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
