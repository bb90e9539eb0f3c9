"""What a hostile client may try at the network's side of the server. The threat model is docs/security.md."""

import json
import os
import socket
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from backends.serving.window import Window
from client import InvalidArgument, TTSClient
from launcher.instance import Instance
from tests.e2e.raw import Connection, bytes_element, request, text_request
from tests.e2e.servers import running_server
from tests.e2e.test_control import idle, wait_until

MARKER = "quokka marzipan"
KEY = "open-sesame-5b1f"


@pytest.fixture
def raw(server):
    with Connection(server.grpc_url) as connection:
        yield connection


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("RepositoryIndex", pb.RepositoryIndexRequest()),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="evil")),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="talker")),
        ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="x", key="/y", byte_size=8)),
        ("LogSettings", pb.LogSettingsRequest()),
        ("TraceSetting", pb.TraceSettingRequest()),
    ],
)
def test_grpc_administration_needs_the_key(server, method, message):
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        with pytest.raises(grpc.RpcError, match="restricted"):
            call(message, timeout=5)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "repository/models/talker/unload"),
        ("POST", "repository/models/evil/load"),
        ("POST", "systemsharedmemory/region/x/register"),
        ("GET", "logging"),
        ("GET", "trace/setting"),
    ],
)
def test_http_administration_needs_the_key(server, method, path):
    url = f"http://{server.host}:{server.http_port}/v2/{path}"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, method=method, data=b"{}"), timeout=5)
    assert error.value.code == 403


def test_draining_needs_the_key(client):
    for key in (None, "guess"):
        with pytest.raises(InvalidArgument, match="op=drain needs the one of this server"):
            client.drain(0.0, key=key)
    assert client.say("Nobody is sent away.").finish_reason == "stop"


def test_all_three_ports_are_bound_to_localhost_only(server):
    for port in server.ports().values():
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # free: nothing listens at 0.0.0.0


@pytest.mark.parametrize(
    "voice", ["../../../etc/passwd", "/etc/passwd", "wren.yaml", "$(id)", "wren; rm -rf /"]
)
def test_a_voice_is_a_name_in_a_table_never_a_path(client, voice):
    with pytest.raises(InvalidArgument, match="voice is"):
        client.say("Hello.", voice=voice)


def forged(row: int, generation: int, frames: np.ndarray, index: int = -1) -> pb.ModelInferRequest:
    payload, meta = Window(row, generation, index, frames).pack()
    return request(
        "codec",
        {
            "frames": ("INT32", [1, payload.size], payload.tobytes()),
            "meta": ("INT64", [1, meta.size], meta.tobytes()),
        },
    )


@pytest.mark.parametrize(
    "window",
    [
        forged(0, 1, np.zeros((0, 8), np.int32)),
        forged(0, 1, np.full((4, 8), 1 << 30, np.int32), index=0),
        forged(1 << 40, 1, np.zeros((1, 8), np.int32)),
        forged(-1, -1, np.zeros((1, 8), np.int32)),
    ],
    ids=["opening", "codes out of range", "row out of range", "negative"],
)
def test_the_codec_takes_windows_of_the_talker_only(raw, client, window):
    assert "ask for speech at model tts" in raw.error(window)
    assert client.say("Hello.").finish_reason == "stop"


def test_the_talker_gives_no_speech_to_who_asks_it_itself(raw, client):
    """Asked for the ensemble's outputs, it cannot tell at once; the codec that never saw the stream can."""
    message = text_request("One. " * 50, model="talker")
    for name in ("frames", "meta"):
        message.outputs.add(name=name)
    assert "ask for speech at model tts" in raw.error(message)
    wait_until(idle(client))
    assert client.say("Hello.").finish_reason == "stop"


@pytest.fixture(scope="module")
def exposed(tmp_path_factory):
    """A server that other hosts may reach, with the most talkative log."""
    before = os.environ.get("TRITONE_KEY")
    os.environ["TRITONE_KEY"] = KEY
    try:
        runtime = tmp_path_factory.mktemp("exposed")
        with running_server(runtime, bind="0.0.0.0", log_level="debug", probe_seconds=0.0) as settings:
            yield settings, Instance(settings.grpc_port, runtime).log
    finally:
        if before is None:
            del os.environ["TRITONE_KEY"]
        else:
            os.environ["TRITONE_KEY"] = before


def post(settings, body: bytes, **headers: str) -> bytes:
    url = f"http://{settings.host}:{settings.http_port}/v2/models/tts/generate_stream"
    request = urllib.request.Request(url, data=body, headers=headers)
    answer: bytes = urllib.request.urlopen(request, timeout=20).read()
    return answer


@pytest.mark.parametrize(
    "body", [b'{"target_text": "Hello."}', b'{"target_text": ' + b"[" * 50_000], ids=["speech", "deep JSON"]
)
def test_other_hosts_need_the_key_for_speech_over_http(exposed, body):
    """Triton reads JSON by recursion: deep JSON would end the server, so its reader is behind the key."""
    settings, _ = exposed
    with pytest.raises(urllib.error.HTTPError) as error:
        post(settings, body)
    assert error.value.code == 403
    assert b'"finish_reason\\": \\"stop\\"' in post(
        settings, b'{"target_text": "Hello."}', **{"tritone-key": KEY}
    )


def test_logs_hold_no_text(exposed):
    """Neither what is spoken nor what is refused, over gRPC and HTTP, not even at level debug."""
    settings, log = exposed
    with TTSClient(settings.grpc_url) as client:
        client.say(f"The {MARKER} is secret.")
        with client.open(f"An open {MARKER} too. ") as stream:
            stream.append(f"And more {MARKER}. ")
            stream.end()
            list(stream)
    with Connection(settings.grpc_url) as raw:
        raw.error(text_request(f"{MARKER} " * 5_000))
        raw.error(text_request(MARKER.encode() + b"\xff"))
        told = ("BYTES", [1, 1], bytes_element(MARKER.encode()))
        raw.error(text_request("Hello.", reference_text=told))
    body = json.dumps({"target_text": f"The {MARKER} again."}).encode()
    assert b"waveform" in post(settings, body, **{"tritone-key": KEY})
    text = log.read_text(errors="replace")
    assert "ready after" in text
    for word in (*MARKER.split(), KEY):
        assert word not in text
