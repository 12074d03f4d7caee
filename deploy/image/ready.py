"""Health check of a container: `ready.py PORT` requests the service's own /readyz. It imports only modules that load in milliseconds."""

import socket
import sys

ADDRESS = ("127.0.0.1", int(sys.argv[1]))
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

try:
    with socket.create_connection(ADDRESS, 2.0) as connection:
        connection.settimeout(2.0)
        connection.sendall(REQUEST)
        with connection.makefile("rb") as answer:
            status = answer.readline().decode().strip()
except OSError as error:
    sys.exit(f"{ADDRESS[0]}:{ADDRESS[1]} does not answer: {error}")
if " 200" not in status:
    sys.exit(f"not ready: {status}")
