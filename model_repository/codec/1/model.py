"""Triton model `codec`: hands windows to the codec service. All logic is in backends/serving."""

import torch

from backends.codec_engine import CodecEngine
from backends.family import load_family
from backends.graphs import capture_for
from backends.serving import triton
from backends.serving.codec_service import CodecService
from backends.serving.ledger import Ledger
from backends.serving.settings import Settings


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        settings = Settings.from_environment()
        log = triton.StubLog("codec", settings.log_level)
        voice = settings.voice
        if voice.engine.threads:
            torch.set_num_threads(voice.engine.threads)
        ledger = Ledger(settings.ledger, "codec")
        codec = load_family(voice.family).load_codec(voice, settings.device)
        # Chunk sizes; the engine adds the context that a windowed codec wants.
        sizes = voice.stream.frame_sizes("state")
        capture = capture_for(codec.device, voice.engine.compile)
        engine = CodecEngine(codec, voice.engine, sizes, capture=capture)
        engine.warm_up(lambda done, total: log.info(f"codec graph {done}/{total}"))
        self.service = CodecService(
            codec.spec, engine, ledger, voice.limits.stuck_seconds, log, triton.StubMetrics("codec")
        )
        self.loop = triton.start_loop("codec", self.service.run, log)

    def execute(self, requests: list) -> None:
        for request in requests:
            inputs = triton.read_inputs(request)
            responder = triton.CodecResponder(request.get_response_sender())
            self.service.arrive(inputs["frames"], inputs["meta"], responder)

    def finalize(self) -> None:
        self.service.stop()
        self.loop.join(5.0)
