"""Runs a soak against a server of the tests."""

import asyncio

from bench.session import Bar
from bench.soak import Soak, SoakPlan, SoakReport
from bench.supervised import Watched


def soak_without_fault(server, speech, plan: SoakPlan) -> SoakReport:
    """The report of a soak that found none: no stream open, no row in use, no sample wrong, no process dead."""
    with Bar() as bar:
        http = (server.host, server.http_port)
        report = asyncio.run(Soak(server.grpc_url, http, plan, Watched(server)).run(speech, bar))
    assert report.faults == [], report.faults
    return report
