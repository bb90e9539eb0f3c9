"""WAV files: written chunk by chunk, read back in every format that recordings come in."""

from __future__ import annotations

import io
import os
import struct
import threading
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client.errors import InvalidArgument
from client.wav import WavWriter, read_wav, to_pcm16


def wav_bytes(
    kind: int, bits: int, channels: int, rate: int, data: bytes, *, extensible: bool = False
) -> bytes:
    frame = channels * bits // 8
    layout = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, rate * frame, frame, bits)
    if extensible:
        guid_tail = bytes.fromhex("000000001000800000aa00389b71")
        layout += struct.pack("<HHIH", 22, bits, 0, kind) + guid_tail
    chunks = b"fmt " + struct.pack("<I", len(layout)) + layout
    # A chunk of odd size, which is padded, stands before the samples as in many real files.
    chunks += b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


class TestPcm:
    def test_full_scale_and_zero(self) -> None:
        samples = np.array([0.0, 1.0, -1.0, 0.5], np.float32)
        assert np.frombuffer(to_pcm16(samples), "<i2").tolist() == [0, 32767, -32767, 16384]

    def test_what_is_louder_than_full_scale_is_clipped_not_wrapped(self) -> None:
        samples = np.array([1.0001, 2.0, -3.0, np.inf, -np.inf], np.float32)
        assert np.frombuffer(to_pcm16(samples), "<i2").tolist() == [32767, 32767, -32767, 32767, -32767]

    def test_nan_is_refused(self) -> None:
        with pytest.raises(ValueError, match="NaN"):
            to_pcm16(np.array([0.0, np.nan], np.float32))


class TestWriting:
    @pytest.mark.parametrize(("rate", "channels"), [(24_000, 1), (48_000, 2), (8_000, 6), (22_050, 1)])
    def test_chunks_become_one_file(self, tmp_path: Path, rate: int, channels: int) -> None:
        audio = np.linspace(-1, 1, 1000 * channels, dtype=np.float32).reshape(-1, channels)
        samples = audio[:, 0] if channels == 1 else audio
        with WavWriter(tmp_path / "a.wav", rate, channels) as writer:
            for part in np.array_split(samples, 7):
                writer.write(part)
        with wave.open(str(tmp_path / "a.wav")) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, channels, 2)
            assert file.getnframes() == 1000
            assert file.readframes(1000) == to_pcm16(audio)

    def test_the_file_is_whole_after_every_chunk(self, tmp_path: Path) -> None:
        path = tmp_path / "a.wav"
        writer = WavWriter(path, 24_000)
        for count in (1, 2, 3):
            writer.write(np.zeros(480, np.float32))
            with wave.open(str(path)) as file:
                assert file.getnframes() == 480 * count
        writer.close()

    def test_no_chunk_is_an_empty_file(self, tmp_path: Path) -> None:
        WavWriter(tmp_path / "a.wav", 24_000).close()
        with wave.open(str(tmp_path / "a.wav")) as file:
            assert file.getnframes() == 0

    def test_wrong_channel_count_is_refused(self, tmp_path: Path) -> None:
        with (
            WavWriter(tmp_path / "a.wav", 24_000, 2) as writer,
            pytest.raises(ValueError, match="1 channels"),
        ):
            writer.write(np.zeros(4, np.float32))

    def test_a_pipe_gets_a_header_of_unknown_length(self) -> None:
        read_end, write_end = os.pipe()
        received = bytearray()

        def receive() -> None:
            with os.fdopen(read_end, "rb") as pipe:
                received.extend(pipe.read())

        reader = threading.Thread(target=receive)
        reader.start()
        samples = np.array([0.0, 0.5, -0.5], np.float32)
        with os.fdopen(write_end, "wb") as pipe, WavWriter(pipe, 16_000) as writer:
            writer.write(samples)
        reader.join(5)
        fields = struct.unpack("<4sI4s4sIHHIIHH4sI", received[:44])
        assert fields[1] == fields[12] == 0xFFFFFFFF
        assert fields[5:11] == (1, 1, 16_000, 32_000, 2, 16)
        assert bytes(received[44:]) == to_pcm16(samples)

    def test_an_open_file_stays_open(self) -> None:
        buffer = io.BytesIO()
        with WavWriter(buffer, 24_000) as writer:
            writer.write(np.ones(3, np.float32))
        assert len(buffer.getvalue()) == 44 + 6


class TestReading:
    LEVELS = (0.0, 0.5, -0.5, -1.0)

    @pytest.mark.parametrize("extensible", [False, True])
    @pytest.mark.parametrize(
        ("kind", "bits", "data"),
        [
            (1, 8, bytes([128, 192, 64, 0])),
            (1, 16, struct.pack("<4h", 0, 1 << 14, -1 << 14, -1 << 15)),
            (1, 24, bytes.fromhex("000000 000040 0000c0 000080")),
            (1, 32, struct.pack("<4i", 0, 1 << 30, -1 << 30, -1 << 31)),
            (3, 32, struct.pack("<4f", 0, 0.5, -0.5, -1)),
            (3, 64, struct.pack("<4d", 0, 0.5, -0.5, -1)),
        ],
    )
    def test_sample_formats(
        self, tmp_path: Path, kind: int, bits: int, data: bytes, extensible: bool
    ) -> None:
        (tmp_path / "a.wav").write_bytes(wav_bytes(kind, bits, 1, 44_100, data, extensible=extensible))
        samples, rate = read_wav(tmp_path / "a.wav")
        assert samples.dtype == np.float32
        assert rate == 44_100
        assert samples.tolist() == list(self.LEVELS)

    def test_channels_are_averaged(self, tmp_path: Path) -> None:
        data = struct.pack("<4f", 1.0, 0.0, -0.5, -0.5)
        (tmp_path / "a.wav").write_bytes(wav_bytes(3, 32, 2, 48_000, data))
        assert read_wav(tmp_path / "a.wav")[0].tolist() == [0.5, -0.5]

    def test_a_file_cut_off_in_a_sample_keeps_the_whole_ones(self, tmp_path: Path) -> None:
        whole = wav_bytes(1, 16, 1, 16_000, struct.pack("<3h", 1, 2, 3))
        (tmp_path / "a.wav").write_bytes(whole[:-1])
        assert len(read_wav(tmp_path / "a.wav")[0]) == 2

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"ID3\x04 an MP3 file", "no WAV file"),
            (b"", "no WAV file"),
            (b"RIFF\x04\0\0\0WAVE", "without a format"),
            (wav_bytes(1, 16, 1, 16_000, b"")[:36], "without samples"),
            (wav_bytes(6, 8, 1, 8_000, b"\0"), "format 6 with 8 bits"),
            (wav_bytes(1, 16, 0, 16_000, b""), "0 channels"),
            (wav_bytes(1, 16, 1, 0, b""), "0 Hz"),
        ],
    )
    def test_what_cannot_be_read_is_named(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(InvalidArgument, match=message):
            read_wav(tmp_path / "a.wav")

    @given(st.binary(max_size=80))
    def test_any_bytes_are_read_or_refused(
        self, tmp_path_factory: pytest.TempPathFactory, junk: bytes
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "junk.wav"
        path.write_bytes(b"RIFF\0\0\0\0WAVE" + junk)
        try:
            samples, rate = read_wav(path)
        except InvalidArgument:
            return
        assert rate > 0
        assert samples.ndim == 1


@given(hnp.arrays(np.float32, st.integers(0, 64), elements=st.floats(-1, 1, width=32)))
def test_what_is_written_is_read_back_to_one_step(
    tmp_path_factory: pytest.TempPathFactory, samples: np.ndarray
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.wav"
    with WavWriter(path, 24_000) as writer:
        writer.write(samples)
    assert np.abs(read_wav(path)[0] - samples).max(initial=0) <= 1.5 / 32768
