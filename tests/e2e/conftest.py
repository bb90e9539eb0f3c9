"""One real server for the end-to-end tests of this folder; tests that break a server start their own."""

import asyncio

import pytest

from bench.references import speak_all
from client import TTSClient
from tests.e2e.servers import running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server"), probe_seconds=0.0) as settings:
        yield settings


@pytest.fixture(scope="session")
def speech(server):
    """Requests whose every sample is known."""
    return asyncio.run(speak_all(server.grpc_url, seeds=[1]))


@pytest.fixture
def client(server):
    with TTSClient(server.grpc_url) as client:
        yield client
