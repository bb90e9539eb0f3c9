"""Nothing of a developer's own environment or of running servers reaches these tests."""

import os

import pytest


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("TRITONE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRITONE_RUNTIME_DIR", str(tmp_path / "runtime"))
