"""The quick form of ./tritone bench fuzz."""

import asyncio

import pytest

from bench.fuzz import Fuzzer, FuzzPlan
from bench.misuse import Mischief
from bench.session import Bar
from bench.supervised import Watched


@pytest.mark.parametrize("seed", [1, 2])
def test_random_bad_requests_end_clearly_and_the_witness_beside_hears_every_sample(server, seed):
    plan = FuzzPlan(requests=200, parallel=8, seed=seed, open_text=False)
    with Bar() as bar:
        http = (server.host, server.http_port)
        report = asyncio.run(Fuzzer(server.grpc_url, http, plan, Watched(server)).run(bar))
    assert report.faults == []
    assert sum(counts.total() for counts in report.endings.values()) == plan.requests
    assert len(report.endings) > 8  # all kinds of mischief
    assert report.witness.requests > 0
    assert report.witness.success.hits == report.witness.requests


def test_mischief_is_the_same_for_the_same_seed():
    first, second = Mischief(3), Mischief(3)
    assert [first.draw() for _ in range(50)] == [second.draw() for _ in range(50)]
