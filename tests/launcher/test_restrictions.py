"""Which parts of Triton's API are behind the key, and where."""

import pytest

from launcher.server import RESTRICTED, is_loopback, restrictions


@pytest.mark.parametrize(
    ("bind", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("tts.example.com", False),
    ],
)
def test_what_other_hosts_can_reach(bind, loopback):
    assert is_loopback(bind) is loopback


@pytest.mark.parametrize(("bind", "guarded"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_administration_is_always_guarded_and_http_speech_where_others_reach_it(bind, guarded):
    grpc, http = restrictions("sesame", bind)
    parts = ",".join(RESTRICTED)
    assert grpc == f"--grpc-restricted-protocol={parts}:tritone-key=sesame"
    assert http == f"--http-restricted-api={parts}{',inference' if guarded else ''}:tritone-key=sesame"
