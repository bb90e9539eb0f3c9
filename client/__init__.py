"""Python client of the streaming text-to-speech server."""

from client.async_client import AsyncSpeechStream, AsyncTextStream, AsyncTTSClient
from client.audio import AudioChunk, Utterance
from client.config import ClientConfig, KeepAlive
from client.errors import (
    Cancelled,
    InactivityTimeout,
    InternalError,
    InvalidArgument,
    ProtocolError,
    ServerFull,
    TTSError,
    Unavailable,
)
from client.protocol import ControlStatus
from client.request import SpeechOptions
from client.sync_client import SpeechStream, TextStream, TTSClient
from client.trace import Arrival, Trace
from client.wav import WavWriter, read_wav

__all__ = [
    "Arrival",
    "AsyncSpeechStream",
    "AsyncTTSClient",
    "AsyncTextStream",
    "AudioChunk",
    "Cancelled",
    "ClientConfig",
    "ControlStatus",
    "InactivityTimeout",
    "InternalError",
    "InvalidArgument",
    "KeepAlive",
    "ProtocolError",
    "ServerFull",
    "SpeechOptions",
    "SpeechStream",
    "TTSClient",
    "TTSError",
    "TextStream",
    "Trace",
    "Unavailable",
    "Utterance",
    "WavWriter",
    "read_wav",
]
