"""Where the server is and how to talk to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from client.errors import InvalidArgument

DEFAULT_URL = "localhost:8001"

# After op=cancel the server may still send what is on its way. Then the call is ended, finished or not.
CANCEL_GRACE_SECONDS = 2.0

# Chunks that wait for a slow reader; beyond this gRPC's flow control holds the server back.
MAILBOX_CHUNKS = 256


@dataclass(frozen=True)
class KeepAlive:
    """HTTP/2 pings that notice a dead network path (a half-open TCP connection) while nothing arrives.

    The default is as often as a Triton server tolerates by default. One that is pinged more often ends the
    connection and every stream on it (GOAWAY, too_many_pings), so for a shorter interval start it with
    --grpc-http2-min-recv-ping-interval-without-data=MILLISECONDS and --grpc-http2-max-ping-strikes=0. Streams
    seldom need it: the inactivity limit covers them sooner.
    """

    interval_seconds: float = 310.0
    timeout_seconds: float = 10.0
    without_streams: bool = False

    def __post_init__(self) -> None:
        _positive("keepalive.interval_seconds", self.interval_seconds)
        _positive("keepalive.timeout_seconds", self.timeout_seconds)


@dataclass(frozen=True)
class ClientConfig:
    """Checked once, here. Times in seconds; `credentials` None means plain text, Triton's default.

    flow_window_seconds: audio that the server may send ahead of what the user has taken; then it waits. None
    lets it run free: what is not taken piles up on both sides.
    """

    url: str = DEFAULT_URL
    model: str = "tts"
    control_model: str = "talker"
    inactivity_timeout: float | None = 30.0
    control_timeout: float = 5.0
    keepalive: KeepAlive | None = field(default_factory=KeepAlive)
    credentials: grpc.ChannelCredentials | None = None
    flow_window_seconds: float | None = 30.0

    def __post_init__(self) -> None:
        if "://" in self.url or not self.url:
            raise InvalidArgument(
                f"url is {self.url!r}, must be HOST:PORT of the gRPC port, e.g. {DEFAULT_URL}"
            )
        if self.inactivity_timeout is not None:
            _positive("inactivity_timeout", self.inactivity_timeout)
        _positive("control_timeout", self.control_timeout)
        if self.flow_window_seconds is not None and not self.flow_window_seconds >= 1.0:
            raise InvalidArgument(
                f"flow_window_seconds is {self.flow_window_seconds}, must be >= 1, or None to run free"
            )

    def channel_options(self) -> list[tuple[str, int]]:
        options = [
            # One TCP connection a client, not one a process: clients do not share each other's back-off.
            ("grpc.use_local_subchannel_pool", 1),
            # A proxy from the environment must not catch calls to localhost.
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # A restarted server is found again within a second instead of two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if self.keepalive is not None:
            options += [
                ("grpc.keepalive_time_ms", round(self.keepalive.interval_seconds * 1000)),
                ("grpc.keepalive_timeout_ms", round(self.keepalive.timeout_seconds * 1000)),
                ("grpc.keepalive_permit_without_calls", int(self.keepalive.without_streams)),
            ]
        return options


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidArgument(f"{name} is {value}, must be > 0")
