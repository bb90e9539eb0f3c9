"""One real server for the end-to-end tests of this folder; tests that break a server start their own."""

import pytest

from client import TTSClient
from tests.e2e.servers import running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server"), probe_seconds=0.0) as settings:
        yield settings


@pytest.fixture
def client(server):
    with TTSClient(server.grpc_url) as client:
        yield client
