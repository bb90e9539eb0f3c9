"""Settings: options before environment before defaults, checked once."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from launcher.settings import Settings, SettingsError, add_options, resolve, variable_name


def parse(*arguments, names=None):
    parser = argparse.ArgumentParser()
    add_options(parser, names)
    return parser.parse_args(arguments)


def test_defaults():
    settings = resolve(parse(), {})
    assert settings == Settings()
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (8000, 8001, 8002)
    assert settings.bind == "127.0.0.1"


def test_an_option_counts_more_than_the_environment():
    environment = {"TRITONE_GRPC_PORT": "9001", "TRITONE_DEVICE": "cpu", "TRITONE_PROBE_SECONDS": "2.5"}
    settings = resolve(parse("--grpc-port", "9101"), environment)
    assert (settings.grpc_port, settings.device, settings.probe_seconds) == (9101, "cpu", 2.5)


def test_every_field_has_an_option_and_a_variable():
    """A value of each field's type, given in both ways, arrives the same."""
    values = {
        "grpc_port": "9001", "http_port": "9000", "metrics_port": "9002", "bind": "0.0.0.0", "voice": "other",
        "device": "cpu", "log_level": "debug", "threads": "3", "drain_seconds": "5", "probe_seconds": "0",
        "aliases": "cosyvoice2", "model_repository": "/models",
    }  # fmt: skip
    assert set(values) == {field.name for field in fields(Settings)}
    options = [
        f"--{'alias' if name == 'aliases' else name.replace('_', '-')}={value}"
        for name, value in values.items()
    ]
    environment = {
        "TRITONE_ALIAS" if name == "aliases" else variable_name(name): value for name, value in values.items()
    }
    assert resolve(parse(*options), {}) == resolve(parse(), environment) != Settings()


def test_settings_survive_the_way_to_another_process():
    settings = Settings(grpc_port=9001, voice="/v/x.yaml", aliases=("a", "b"), drain_seconds=1.5)
    assert resolve(parse(*settings.to_arguments()), {}) == settings
    assert Settings.from_json(settings.to_json()) == settings


def test_a_path_is_made_absolute_since_the_server_runs_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert resolve(parse("--voice", "mine.yaml"), {}).voice == str(tmp_path / "mine.yaml")
    assert resolve(parse("--voice", "wren"), {}).voice == "wren"
    assert Path(resolve(parse("--model-repository", "m"), {}).model_repository).is_absolute()


def test_a_command_may_take_a_part_of_the_options():
    with pytest.raises(SystemExit):
        parse("--voice", "wren", names=("grpc_port",))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"grpc_port": 0}, "--grpc-port 0"),
        ({"http_port": 70000}, "--http-port 70000"),
        ({"grpc_port": 8000}, "must differ"),
        ({"device": "tpu"}, "--device tpu: choose one of auto, cpu, cuda"),
        ({"log_level": "loud"}, "--log-level loud"),
        ({"threads": -1}, "--threads -1"),
        ({"drain_seconds": -0.1}, "--drain-seconds"),
        ({"aliases": ("../x",)}, "--alias ../x"),
        ({"aliases": ("talker",)}, "--alias talker"),
        ({"voice": ""}, "--voice is empty"),
    ],
)
def test_what_cannot_be_used_is_named(values, message):
    with pytest.raises(SettingsError, match=message):
        Settings(**values)


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(SettingsError, match="TRITONE_HTTP_PORT=high"):
        resolve(parse(), {"TRITONE_HTTP_PORT": "high"})


@pytest.mark.parametrize("bind, host", [("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")])
def test_the_machine_itself_reaches_a_server_that_listens_everywhere(bind, host):
    assert Settings(bind=bind).grpc_url == f"{host}:8001"
