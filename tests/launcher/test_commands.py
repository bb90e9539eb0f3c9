"""The commands: what each one does with its arguments."""

import argparse
import sys

import pytest

from launcher import __main__ as commands
from launcher import checks
from launcher.background import BackgroundError
from launcher.instance import READY, Instance, changed, new_state
from launcher.settings import ROOT, Settings


@pytest.fixture
def said(monkeypatch):
    """`say` without server and client: a list of (settings, voice asked for) and of the client's options."""
    started, spoken = [], []
    monkeypatch.setattr(commands, "ensure_running", lambda s, voice, report: started.append((s, voice)))
    monkeypatch.setattr(commands, "client_say", lambda options: spoken.append(options) or 0)
    return started, spoken


class TestSay:
    def test_starts_a_server_and_speaks_through_it(self, said):
        started, spoken = said
        assert commands.run(["say", "Hello.", "-o", "hello.wav", "--seed", "7", "--grpc-port", "9001"]) == 0
        (settings, voice), (options,) = started[0], spoken
        assert (settings.grpc_port, voice) == (9001, None)
        assert (options.text, options.output, options.seed) == ("Hello.", "hello.wav", 7)
        assert options.url == "127.0.0.1:9001"

    def test_a_voice_of_ours_is_the_servers(self, said):
        started, spoken = said
        commands.run(["say", "Hello.", "--voice", "wren"])
        assert started[0][1] == "wren"
        assert spoken[0].voice is None

    def test_another_name_is_a_speaker_within_the_servers_voice(self, said):
        started, spoken = said
        commands.run(["say", "Hello.", "--voice", "vivian"])
        assert started[0][1] is None
        assert spoken[0].voice == "vivian"

    def test_a_server_elsewhere_is_used_as_it_is(self, said):
        started, spoken = said
        commands.run(["say", "Hello.", "--url", "tts.example:8001"])
        assert started == []
        assert spoken[0].url == "tts.example:8001"


class TestOthers:
    @pytest.mark.parametrize("command", ["say", "serve", "stop", "status", "health", "test", "install"])
    def test_each_has_a_help(self, command, capsys):
        with pytest.raises(SystemExit) as ended:
            commands.run([command, "--help"])
        assert ended.value.code == 0
        assert f"./tritone {command}" in capsys.readouterr().out

    def test_an_unknown_option_is_refused(self):
        with pytest.raises(SystemExit) as ended:
            commands.run(["serve", "--gprc-port", "1"])
        assert ended.value.code == 2

    @pytest.mark.parametrize("command, module", [("bench", "bench"), ("make-random", "backends.make_random")])
    def test_others_programs_get_their_arguments_as_they_are(self, monkeypatch, command, module):
        became = []
        monkeypatch.setattr(commands, "become", lambda *call: became.append(call) or 0)
        commands.run([command, "--help", "-x", "1"])
        assert became == [(module, ["--help", "-x", "1"])]

    def test_status_tells_what_runs(self, capsys):
        assert commands.run(["status"]) == 3
        settings = Settings(grpc_port=9001)
        with Instance(9001).hold():
            Instance(9001).write(changed(new_state(settings), READY))
            assert commands.run(["status"]) == 0
            assert "gRPC 127.0.0.1:9001: ready" in capsys.readouterr().out

    def test_stop_without_a_server_points_to_others(self, capsys):
        assert commands.run(["stop"]) == 0
        assert "no server runs" in capsys.readouterr().err
        with Instance(9001).hold():
            Instance(9001).write(new_state(Settings(grpc_port=9001)))
            commands.run(["stop"])
        assert "running on 9001" in capsys.readouterr().err

    def test_health_without_a_server(self, capsys):
        assert commands.run(["health", "--grpc-port", "1", "--timeout", "1"]) == 1
        assert capsys.readouterr().out.startswith("unhealthy:")

    def test_an_error_is_a_sentence_not_a_traceback(self, monkeypatch, capsys):
        def fail(*_):
            raise BackgroundError("the server did not start: no reason")

        monkeypatch.setattr(commands, "ensure_running", fail)
        monkeypatch.setattr(sys, "argv", ["launcher", "say", "Hello."])
        assert commands.main() == 1
        assert capsys.readouterr().err == "tritone: the server did not start: no reason\n"


class TestChecks:
    def test_all_of_them_and_the_tests_last(self):
        assert [name for name, _ in checks.commands([])] == ["lint", "format", "types", "tests"]

    def test_typed_packages_are_there(self):
        assert all((ROOT / package / "__init__.py").exists() for package in checks.TYPED)

    def test_arguments_choose_tests(self):
        commands_ = checks.commands(["tests/client", "-x"])
        assert [(name, command[-2:]) for name, command in commands_] == [("tests", ["tests/client", "-x"])]

    def test_all_run_even_if_one_fails(self, monkeypatch):
        monkeypatch.setattr(
            checks,
            "commands",
            lambda _: [
                ("bad", [sys.executable, "-c", "raise SystemExit(3)"]),
                ("good", [sys.executable, "-c", "pass"]),
            ],
        )
        lines = []
        assert checks.run([], lines.append) == 1
        assert lines[-1] == "failed: bad"
        assert any(line.startswith("good: passed") for line in lines)


def test_the_options_of_say_do_not_collide():
    """The client's and ours in one parser: no option of either means two things, --voice and --url apart."""
    parser = commands.build_parser()
    say = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices["say"]
    strings = [s for action in say._actions for s in action.option_strings]
    assert len(strings) == len(set(strings))
