"""Busy ports are noticed before the server starts, and their holder is named."""

import os
import socket

import pytest

from launcher.instance import READY, Instance, changed, new_state
from launcher.ports import PortsBusyError, check_free, holder, is_free
from launcher.settings import Settings


@pytest.fixture
def taken():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free():
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for s in (a, b, c):
            s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in (a, b, c)]
    return ports


def test_free_ports_pass(free):
    check_free(Settings(grpc_port=free[0], http_port=free[1], metrics_port=free[2]))


def test_a_port_whose_connections_are_still_closing_counts_as_free():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            connection, _ = listener.accept()
            connection.close()  # the server closes first, so its side waits in TIME_WAIT
    assert is_free("127.0.0.1", port)


def test_the_holder_is_named(taken, free):
    assert f"process {os.getpid()}" in holder(taken)
    with pytest.raises(PortsBusyError, match=rf"--http-port {taken} is taken by .*process {os.getpid()}"):
        check_free(Settings(grpc_port=free[0], http_port=taken, metrics_port=free[1]))


def test_other_ports_are_proposed(taken, free):
    with pytest.raises(PortsBusyError, match=rf"choose others, e\.g\. --grpc-port {free[0] + 1000}"):
        check_free(Settings(grpc_port=free[0], http_port=taken, metrics_port=free[1]))


def test_a_server_of_ours_is_told_from_a_stranger(taken, free):
    ours = Settings(grpc_port=free[0], http_port=taken, metrics_port=free[1], voice="wren")
    with Instance(ours.grpc_port).hold():
        Instance(ours.grpc_port).write(changed(new_state(ours), READY))
        with pytest.raises(PortsBusyError, match=rf"gRPC port {free[0]} \(voice wren\).*tritone stop"):
            check_free(Settings(grpc_port=free[2], http_port=taken, metrics_port=free[1]))
