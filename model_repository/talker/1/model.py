"""Triton model `talker`: hands requests to the talker service. All logic is in backends/serving."""

from concurrent.futures import ThreadPoolExecutor

import torch

from backends.family import load_family
from backends.graphs import capture_for
from backends.serving import triton
from backends.serving.ledger import Ledger
from backends.serving.settings import Settings
from backends.serving.talker_service import TalkerService
from backends.talker_engine import TalkerEngine


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        settings = Settings.from_environment()
        log = triton.StubLog("talker", settings.log_level)
        voice = settings.voice
        if voice.engine.threads:
            torch.set_num_threads(voice.engine.threads)
        ledger = Ledger(settings.ledger, "talker")
        talker = load_family(voice.family).load_talker(voice, settings.device)
        capture = capture_for(talker.device, voice.engine.compile)
        engine = TalkerEngine(talker, voice.engine, capture=capture)
        engine.warm_up(lambda done, total: log.info(f"talker graph {done}/{total}"))
        for warning in voice.stream.warnings:
            log.warning(warning)
        self.service = TalkerService(
            voice, talker, engine, ledger, log, triton.StubMetrics("talker"), key=settings.key
        )
        self.openings = ThreadPoolExecutor(1, "openings")
        triton.on_sigterm(self.service.abort)
        self.loop = triton.start_loop("talker", self.service.run, log)

    def execute(self, requests: list) -> None:
        for request in requests:
            responder = triton.TalkerResponder(request.get_response_sender(), self.openings)
            # Only a request that came here by itself asks for `status`; the ensemble maps the two other outputs.
            direct = "status" in request.requested_output_names()
            self.service.arrive(
                triton.read_inputs(request), triton.read_parameters(request), responder, direct
            )

    def finalize(self) -> None:
        self.service.stop()
        self.loop.join(5.0)
        self.openings.shutdown()
