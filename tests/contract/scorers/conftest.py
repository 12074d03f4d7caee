"""What holds for the scorers' tests."""

import grpc
import pytest


@pytest.fixture(autouse=True, scope="session")
def grpc_stays():
    """A channel that is open to the end, so that gRPC stays up.

    Without any channel it goes down in a thread of its own, some time after a test. A thread that is none of Python's has ended the
    process of these tests twice, while one of them waited; that it was this one is a guess.
    """
    with grpc.insecure_channel("127.0.0.1:9") as channel:
        yield channel
