"""The rules of a stream, response by response, without a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from client.audio import AudioChunk
from client.errors import Cancelled, InternalError, InvalidArgument, ProtocolError, ServerFull
from client.protocol import StreamDecoder, decode_status
from client.trace import TraceRecorder
from tests.client.scripted_server import audio, error, final, speech, status

REQUEST = pb.ModelInferRequest(model_name="tts", id="s")
ONES = np.ones(480, np.float32)


class Decoded:
    """A decoder that has been fed."""

    def __init__(self, responses: Iterable[pb.ModelStreamInferResponse]) -> None:
        self.recorder = TraceRecorder("s")
        self.decoder = StreamDecoder("s", self.recorder)
        self.chunks: list[AudioChunk] = []
        for response in responses:
            chunk = self.decoder.decode(response)
            if chunk is not None:
                self.chunks.append(chunk)

    def check(self) -> Decoded:
        self.decoder.check_complete()
        self.decoder.check_ended()
        return self


def first(**changes: Any) -> pb.ModelStreamInferResponse:
    """A first chunk with one field of chunk_info replaced."""
    fields = {"index": 0, "first_sample": 0, "samples": ONES, **changes}
    return audio(REQUEST, **fields)


class TestHealthyStreams:
    @pytest.mark.parametrize("merged", [True, False])
    def test_final_flag_with_the_last_data_or_alone(self, merged: bool) -> None:
        stream = Decoded(speech(REQUEST, 3, merged_final=merged)).check()
        assert [chunk.index for chunk in stream.chunks] == [0, 1, 2]
        assert [chunk.first_sample for chunk in stream.chunks] == [0, 480, 960]
        assert [chunk.finish_reason for chunk in stream.chunks] == [None, None, "stop"]
        assert stream.decoder.finished

    def test_no_frame_at_all_is_one_final_and_no_audio(self) -> None:
        stream = Decoded([final(REQUEST)]).check()
        assert stream.chunks == []
        assert stream.decoder.finish_reason is None

    def test_mono_is_flat_and_more_channels_are_columns(self) -> None:
        assert Decoded([first()]).chunks[0].samples.shape == (480,)
        stereo = np.arange(8, dtype=np.float32).reshape(4, 2)
        chunk = Decoded([audio(REQUEST, 0, 0, stereo, rate=48_000)]).chunks[0]
        assert (chunk.channels, chunk.sample_rate) == (2, 48_000)
        assert np.array_equal(chunk.samples, stereo)
        assert chunk.seconds == 4 / 48_000

    def test_unknown_keys_and_outputs_are_ignored(self) -> None:
        response = first(loudness=3, more={"a": 1})
        response.infer_response.outputs.add(name="words", datatype="INT32", shape=[1])
        response.infer_response.raw_output_contents.append(b"\0\0\0\0")
        assert len(Decoded([response]).chunks) == 1

    def test_a_last_chunk_may_be_empty(self) -> None:
        # A cancelled stream, or one whose last text brought no further frame.
        responses = [first(), audio(REQUEST, 1, 480, ONES[:0], finish_reason="cancelled", final=True)]
        stream = Decoded(responses).check()
        assert [len(chunk.samples) for chunk in stream.chunks] == [480, 0]
        assert len(stream.recorder.snapshot().arrivals) == 1
        assert stream.decoder.finish_reason == "cancelled"

    def test_samples_cannot_be_changed(self) -> None:
        samples = Decoded([first()]).chunks[0].samples
        assert samples.dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            samples[0] = 0

    @given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 3), st.booleans())
    def test_any_split_into_chunks_gives_the_same_audio(
        self, sizes: list[int], channels: int, merged: bool
    ) -> None:
        whole = np.arange(sum(sizes) * channels, dtype=np.float32).reshape(-1, channels) / 1000
        responses, position = [], 0
        for index, size in enumerate(sizes):
            last = index == len(sizes) - 1
            part = whole[position : position + size]
            responses.append(
                audio(
                    REQUEST,
                    index,
                    position,
                    part,
                    finish_reason="stop" if last else None,
                    final=last and merged,
                )
            )
            position += size
        if not merged or not sizes:
            responses.append(final(REQUEST))
        stream = Decoded(responses).check()
        parts = [chunk.samples.reshape(-1, channels) for chunk in stream.chunks]
        assert np.array_equal(np.concatenate([whole[:0], *parts]), whole)
        assert sum(arrival.samples for arrival in stream.recorder.snapshot().arrivals) == sum(sizes)


class TestBrokenStreams:
    @pytest.mark.parametrize(
        ("responses", "message"),
        [
            ([first(), audio(REQUEST, 1, 481, ONES)], "hole before chunk 1: starts at sample 481"),
            ([first(), audio(REQUEST, 1, 479, ONES)], "overlap before chunk 1"),
            ([audio(REQUEST, 0, 5, ONES)], "hole before chunk 0"),
            ([first(), audio(REQUEST, 2, 480, ONES)], "chunk 2 arrived where chunk 1 was due"),
            ([first(), first()], "chunk 0 arrived where chunk 1 was due"),
            ([first(), audio(REQUEST, 1, 480, ONES, rate=16_000)], "the stream began with 24000 Hz"),
            ([first(), audio(REQUEST, 1, 480, ONES.reshape(-1, 2))], "2 channels"),
            ([first(channels=7)], "no multiple of 7 channels"),
            ([first(channels=0)], "channels is 0"),
            ([first(sample_rate=True)], "sample_rate is True"),
            ([first(index="0")], "index is '0'"),
            ([first(frames=None)], "frames is None"),
            ([first(finish_reason=3)], "finish_reason is 3"),
            ([audio(REQUEST, 0, 0, ONES * np.nan)], "not finite"),
            ([first(finish_reason="stop"), audio(REQUEST, 1, 480, ONES)], "after the last one"),
            ([first(finish_reason="stop", final=True), final(REQUEST)], "after the final one"),
            ([audio(pb.ModelInferRequest(id="other"), 0, 0, ONES)], "for request other"),
        ],
    )  # fmt: skip
    def test_is_a_protocol_error(self, responses: list[pb.ModelStreamInferResponse], message: str) -> None:
        with pytest.raises(ProtocolError, match=message):
            Decoded(responses)

    @pytest.mark.parametrize("missing", ["waveform", "chunk_info"])
    def test_a_missing_output_is_named(self, missing: str) -> None:
        response = first()
        kept = [each.name != missing for each in response.infer_response.outputs]
        index = kept.index(False)
        del response.infer_response.outputs[index]
        del response.infer_response.raw_output_contents[index]
        with pytest.raises(ProtocolError, match=f"output {missing} is missing"):
            Decoded([response])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\x05\0\0\0hello", "is no JSON"),
            (b"\x02\0\0\0[]", "must be a JSON object"),
            (b"\x09\0\0\0{}", "must be one BYTES element"),
            (b"", "must be one BYTES element"),
        ],
    )
    def test_malformed_chunk_info(self, content: bytes, message: str) -> None:
        response = first()
        response.infer_response.raw_output_contents[1] = content
        with pytest.raises(ProtocolError, match=message):
            Decoded([response])

    def test_outputs_without_contents(self) -> None:
        response = first()
        del response.infer_response.raw_output_contents[1]
        with pytest.raises(ProtocolError, match="2 outputs but 1 raw contents"):
            Decoded([response])

    def test_a_response_of_nothing(self) -> None:
        response = final(REQUEST)
        response.infer_response.parameters["triton_final_response"].bool_param = False
        with pytest.raises(ProtocolError, match="neither outputs nor the final flag"):
            Decoded([response])

    def test_the_server_closes_the_call_too_early(self) -> None:
        with pytest.raises(ProtocolError, match=r"closed the call after 0\.02 s of audio without a final"):
            Decoded([first()]).decoder.check_ended()


class TestEndsThatAreErrors:
    @pytest.mark.parametrize("scheduled", [True, False])
    def test_an_error_is_terminal_with_or_without_the_final_flag(self, scheduled: bool) -> None:
        with pytest.raises(ServerFull, match="64 streams run"):
            Decoded([error(REQUEST, "in ensemble 'tts', FULL: 64 streams run", scheduled=scheduled)])

    def test_cut_off_before_the_last_chunk_is_never_taken_for_complete(self) -> None:
        with pytest.raises(Cancelled, match=r"ended after 0\.02 s of audio without finish_reason"):
            Decoded([first(), final(REQUEST)]).check()

    def test_finish_reason_error_is_an_error(self) -> None:
        with pytest.raises(InternalError, match="gave up this stream"):
            Decoded([first(finish_reason="error", final=True)]).check()


class TestTrace:
    def test_first_audible_sample(self) -> None:
        quiet = np.full(480, 0.0031, np.float32)  # -50.2 dBFS
        loud = quiet.copy()
        loud[7] = -0.0032  # -49.9 dBFS
        stream = Decoded([audio(REQUEST, 0, 0, quiet), audio(REQUEST, 1, 480, loud, finish_reason="stop")])
        assert stream.recorder.snapshot().first_audible_sample == 487

    def test_first_audible_sample_of_any_channel(self) -> None:
        samples = np.zeros((100, 2), np.float32)
        samples[60, 1] = 0.5
        assert Decoded([audio(REQUEST, 0, 0, samples)]).recorder.snapshot().first_audible_sample == 60

    def test_silence_has_none(self) -> None:
        assert Decoded([audio(REQUEST, 0, 0, ONES * 0)]).recorder.snapshot().first_audible_sample is None

    def test_the_first_end_counts(self) -> None:
        recorder = TraceRecorder("s")
        recorder.ended("FULL", "no room")
        end = recorder.snapshot().end_seconds
        recorder.ended()
        trace = recorder.snapshot()
        assert (trace.end_seconds, trace.error_code, trace.error_message) == (end, "FULL", "no room")
        assert not trace.succeeded


class TestControlStatus:
    def test_an_answer(self) -> None:
        answer = decode_status(status(REQUEST, ok=True, op="ping", active=3, voice="wren"), 0.25)
        assert answer is not None
        assert (answer.op, answer.active, answer.round_trip_seconds) == ("ping", 3, 0.25)
        assert answer.details["voice"] == "wren"

    def test_an_empty_final_is_no_answer(self) -> None:
        assert decode_status(final(REQUEST), 0.0) is None

    @pytest.mark.parametrize(
        ("response", "kind", "message"),
        [
            (error(REQUEST, "FULL: no room"), ServerFull, "no room"),
            (status(REQUEST, ok=False, op="append", error="FULL: no room"), ServerFull, "no room"),
            (status(REQUEST, ok=False, op="append", reason="not running"), InvalidArgument, "not running"),
            (status(REQUEST, ok=False, op="append"), InvalidArgument, "refused append"),
            (status(REQUEST, op="append"), InvalidArgument, "refused append"),
        ],
    )
    def test_a_refusal_is_raised(self, response: Any, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            decode_status(response, 0.0)
