"""Control requests: cancel, append, end, ping."""

import threading
import time

import pytest

from client import InvalidArgument, TTSError
from tests.e2e.raw import Connection, text_request

LONG = " ".join(f"This is sentence number {n} of a story that goes on." for n in range(1, 40))


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def idle(client):
    return lambda: client.ping().active == 0


def test_op_cancel_ends_the_stream_with_reason_cancelled(client):
    stream = client.stream(LONG, stream_id="to-be-cancelled")
    next(stream)
    client.cancel("to-be-cancelled")
    rest = list(stream)
    assert rest[-1].finish_reason == "cancelled"
    assert sum(chunk.seconds for chunk in rest) < 20
    wait_until(idle(client))


def test_closing_a_stream_frees_its_slot(client):
    with client.stream(LONG) as stream:
        next(stream)
        assert client.ping().active == 1
    wait_until(idle(client))


def test_a_client_that_vanishes_frees_its_slot(server, client):
    """No control request, only the connection is gone: seen at the stream's next chunk."""
    with Connection(server.grpc_url) as connection:
        stream = connection.stream(text_request(LONG))
        next(stream)
        assert client.ping().active == 1
        stream.close()
    wait_until(idle(client))


def test_cancelling_what_does_not_run_is_told(client):
    with pytest.raises(InvalidArgument, match="no open stream has stream_id 'nobody'"):
        client.cancel("nobody")


def test_a_stream_id_in_use_is_refused(client):
    with client.stream(LONG, stream_id="mine") as stream:
        next(stream)
        with pytest.raises(InvalidArgument, match="stream_id 'mine' is speaking already"):
            client.say("Hello.", stream_id="mine")
    wait_until(idle(client))


def test_text_may_come_while_it_is_spoken(client):
    parts = ["The first sentence is here. ", "The second comes later. ", "And this is", " the last one."]
    stream = client.open(parts[0], seed=4)
    first = next(stream)  # audio before the text has ended

    def write():
        for part in parts[1:]:
            time.sleep(0.1)
            stream.append(part)
        stream.end()

    writer = threading.Thread(target=write)
    writer.start()
    chunks = [first, *stream]
    writer.join()
    assert chunks[-1].finish_reason == "stop"
    assert sum(chunk.seconds for chunk in chunks) > 4
    position = 0
    for chunk in chunks:
        assert chunk.first_sample == position
        position += len(chunk.samples)


def test_text_after_the_end_is_refused(client):
    stream = client.open("One sentence.", stream_id="closed", seed=1)
    stream.end()
    with pytest.raises(TTSError):
        stream.append("More.")
    assert list(stream)[-1].finish_reason == "stop"


def test_ping_tells_the_load(client):
    status = client.ping()
    assert status.ok and status.active == 0
