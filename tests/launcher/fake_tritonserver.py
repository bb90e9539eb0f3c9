"""A stand-in for tritonserver that starts in a moment: its API, model processes, shared memory, ways to die.

As a program it takes the real command line. A file named by FAKE_SCRIPT holds JSON that says how it behaves:
fail (end with status 1 before being ready), fail_from (fail from that start on), deaf (ignore SIGTERM),
active (streams that never end), silent (pings get no answer), mute (no audio).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

STUB = """
import os, sys, time
parent = os.getppid()
open("/dev/shm/" + sys.argv[2], "w").close()
while os.getppid() == parent:
    time.sleep(0.02)
"""


class Models:
    """The processes of talker and codec."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.count = 0
        self.running = {}

    def load(self, model):
        self.count += 1
        region = f"{self.prefix}{self.count}"
        self.running[model] = subprocess.Popen(
            ["triton_python_backend_stub", "-c", STUB, "model.py", region, f"{model}_0_0"],
            executable=sys.executable,
        )
        while not Path("/dev/shm", region).exists():
            time.sleep(0.005)

    def unload(self, model):
        process = self.running.pop(model)
        process.terminate()
        process.wait()

    def alive(self, model):
        return model in self.running and self.running[model].poll() is None


class FakeService(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers of the talker and the ensemble. `script` is read at every call; `calls` is what was asked."""

    def __init__(self, script, models=None):
        self.script = script
        self.models = models
        self.calls = []
        self.draining = False

    def alive(self, model):
        return self.models is None or self.models.alive(model)

    def ServerReady(self, request, context):  # noqa: N802
        return pb.ServerReadyResponse(ready=True)

    def RepositoryModelUnload(self, request, context):  # noqa: N802
        self.calls.append(f"unload {request.model_name}")
        if self.models is not None:
            self.models.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def RepositoryModelLoad(self, request, context):  # noqa: N802
        self.calls.append(f"load {request.model_name}")
        if self.models is not None:
            self.models.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    def RepositoryIndex(self, request, context):  # noqa: N802
        index = pb.RepositoryIndexResponse()
        for name in ("talker", "codec", "tts"):
            ready = name == "tts" or self.alive(name)
            index.models.add(name=name, state="READY" if ready else "UNAVAILABLE")
        return index

    def ModelStreamInfer(self, request_iterator, context):  # noqa: N802
        request = next(iter(request_iterator))
        op = request.parameters["op"].string_param
        if not self.alive("talker"):
            yield pb.ModelStreamInferResponse(error_message="Stub process 'talker_0_0' is not healthy.")
            return
        if op:
            self.calls.append(op)
            yield from self.control(op, context)
            return
        if self.script.get("error"):
            yield pb.ModelStreamInferResponse(error_message=self.script["error"])
            return
        if not self.script.get("mute"):
            yield answer("waveform", "FP32", b"\0" * 16)
        yield final()

    def control(self, op, context):
        while self.script.get("silent"):
            if not context.is_active():
                return
            time.sleep(0.01)
        self.draining = self.draining or op == "drain"
        status = {
            "ok": self.script.get("ok", True), "op": op, "active": self.script.get("active", 0), "queued": 0,
            "draining": self.draining, "codec_alive": self.alive("codec"),
        }  # fmt: skip
        text = json.dumps(status).encode()
        yield answer("status", "BYTES", len(text).to_bytes(4, "little") + text)
        yield final()


def answer(name, datatype, data):
    response = pb.ModelStreamInferResponse()
    response.infer_response.outputs.add(name=name, datatype=datatype, shape=[1])
    response.infer_response.raw_output_contents.append(data)
    return response


def final():
    response = pb.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


def start(service, port):
    """A gRPC server of that service; port 0 takes a free one. Returns server and port."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    assert bound, f"port {port} is taken"
    server.start()
    return server, bound


def main(arguments):
    values = dict(a[2:].split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
    prefix = next(a for a in arguments if "shm-region-prefix-name=" in a).rpartition("=")[2]
    path = Path(os.environ["FAKE_SCRIPT"])
    script = json.loads(path.read_text())
    starts = path.with_suffix(".starts")
    number = len(starts.read_text()) + 1 if starts.exists() else 1
    starts.write_text("x" * number)
    print(f"fake tritonserver, start {number}", flush=True)
    if script.get("fail") or number >= script.get("fail_from", 1 << 30):
        print("a model cannot be loaded", flush=True)
        return 1
    models = Models(prefix)
    for model in ("talker", "codec"):
        models.load(model)
    service = FakeService(script, models)
    server, _ = start(service, int(values["grpc-port"]))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if script.get("deaf") else ended.set())
    while not ended.wait(0.05):
        script.update(json.loads(path.read_text()))
        path.with_suffix(".calls").write_text("\n".join(service.calls))
    server.stop(0)
    path.with_suffix(".calls").write_text("\n".join(service.calls))
    for model in tuple(models.running):
        models.unload(model)
    for region in Path("/dev/shm").glob(f"{prefix}*"):
        region.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
