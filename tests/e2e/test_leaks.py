"""Streams that are broken off leave nothing behind, however it is done. The long form:
./tritone bench soak --cancels 1000.
"""

import asyncio

import pytest

from bench.soak import CANCELS, SoakPlan
from client import AsyncTTSClient
from tests.e2e.soaking import soak_without_fault
from tests.e2e.test_control import LONG, idle, wait_until

CANCELLED = 100
GROWTH_MEGABYTES = 60.0  # of one process; a leak of one stream's audio a cancel would be more


@pytest.mark.parametrize("kind", CANCELS)
def test_a_hundred_streams_broken_off_leave_nothing(server, client, speech, kind):
    report = soak_without_fault(server, speech, SoakPlan(CANCELLED, 16, {kind: 1}))
    start, end = report.readings["start"], report.readings["end"]
    assert end.rows == 0
    assert end.processes.keys() == start.processes.keys() == {"supervisor", "tritonserver", "talker", "codec"}
    assert max(report.growth_megabytes.values()) < GROWTH_MEGABYTES
    # Regions grow with the largest batch so far and never shrink.
    assert end.shared_megabytes - start.shared_megabytes < 8
    for name in start.processes:
        assert end.processes[name].threads <= start.processes[name].threads + 2
        assert end.processes[name].descriptors <= start.processes[name].descriptors + 16
    assert client.ping().active == 0
    assert client.say(speech.short[0].text, seed=1).finish_reason == "stop"


async def test_cancelling_the_asyncio_task_that_reads_frees_the_slot(server, client):
    async with AsyncTTSClient(server.grpc_url) as speaker:
        heard = asyncio.Event()

        async def listen():
            async with speaker.stream(LONG) as stream:
                async for _ in stream:
                    heard.set()

        task = asyncio.create_task(listen())
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, idle(client))
