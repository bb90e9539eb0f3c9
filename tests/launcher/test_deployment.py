"""Compose file and Dockerfiles: no Docker engine runs where these tests do; what can be read is checked."""

import os
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from launcher import server, supervisor
from launcher.__main__ import build_parser
from launcher.install import CPU_INDEX, TORCH_VERSION
from launcher.settings import ROOT, Settings, resolve, variable_name

DOCKERFILES = {"tritone": ROOT / "docker/Dockerfile", "tritone-cpu": ROOT / "docker/Dockerfile.cpu"}
# Read elsewhere than in Settings: voices folder, runtime folder, and what only the compose file itself uses.
OTHER_VARIABLES = {"TRITONE_ALIAS", "TRITONE_VOICES", "TRITONE_RUNTIME_DIR", "TRITONE_KEY"}
COMPOSE_VARIABLES = {"TRITONE_PUBLISH", "TRITONE_CHECKPOINTS"}
KNOWN = {variable_name(f.name) for f in fields(Settings) if f.name != "aliases"} | OTHER_VARIABLES


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def instructions(path):
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def substitute(value):
    """Compose's ${NAME:-default} with nothing set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))


@pytest.mark.parametrize("name", DOCKERFILES)
class TestImages:
    def test_what_is_copied_is_there_and_goes_to_the_builder(self, name):
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        copied = [a.split()[:-1] for i, a in instructions(DOCKERFILES[name]) if i == "COPY"]
        assert copied
        for source in (s for sources in copied for s in sources):
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored

    def test_every_package_is_copied(self, name):
        copied = {s for i, a in instructions(DOCKERFILES[name]) if i == "COPY" for s in a.split()[:-1]}
        packages = re.search(r"^packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert set(re.findall(r'"([\w.]+)"', packages.group(1))) <= copied

    def test_variables_are_known_and_valid(self, name):
        values = {}
        for instruction, arguments in instructions(DOCKERFILES[name]):
            if instruction == "ENV":
                values |= dict(part.split("=", 1) for part in shlex.split(arguments))
        ours = {key: value for key, value in values.items() if key.startswith("TRITONE_")}
        assert set(ours) <= KNOWN
        settings = resolve(object(), ours)
        assert settings.bind == "0.0.0.0"
        assert not any(re.search("TOKEN|SECRET|PASSWORD|KEY", key) for key in values)

    def test_it_runs_as_an_ordinary_user_with_our_supervisor_and_health_check(self, name):
        found = dict(instructions(DOCKERFILES[name]))
        assert found["USER"] == "1000:1000"
        assert found["STOPSIGNAL"] == "SIGTERM"
        assert found["ENTRYPOINT"].endswith('"python3", "-m", "launcher"]')
        build_parser().parse_args(yaml.safe_load(found["CMD"]))
        health = yaml.safe_load(found["HEALTHCHECK"].split("CMD", 1)[1].strip())
        assert health[:3] == ["python3", "-m", "launcher"]
        options = build_parser().parse_args(health[3:])
        timeout = float(re.search(r"--timeout=(\d+)s", found["HEALTHCHECK"]).group(1))
        assert options.command == "health"
        assert options.timeout < timeout

    def test_the_torch_that_the_launcher_installs(self, name):
        text = DOCKERFILES[name].read_text()
        assert f"ARG TORCH=torch=={TORCH_VERSION}" in text
        if name == "tritone-cpu":
            assert "+cpu" in text
            assert f"ARG TORCH_INDEX={CPU_INDEX}" in text


@pytest.mark.parametrize("name", DOCKERFILES)
class TestCompose:
    def test_builds_from_its_dockerfile(self, compose, name):
        build = compose["services"][name]["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).resolve() == DOCKERFILES[name]

    def test_one_profile_each(self, compose, name):
        assert compose["services"][name]["profiles"] == [{"tritone": "gpu", "tritone-cpu": "cpu"}[name]]

    def test_ports_are_the_defaults_and_reach_this_host_only(self, compose, name):
        ports = [substitute(port) for port in compose["services"][name]["ports"]]
        defaults = Settings().ports().values()
        assert sorted(ports) == sorted(f"127.0.0.1:{port}:{port}" for port in defaults)
        exposed = dict(instructions(DOCKERFILES[name]))["EXPOSE"].split()
        assert sorted(map(int, exposed)) == sorted(defaults)

    def test_variables_are_known_and_their_defaults_valid(self, compose, name):
        environment = compose["services"][name]["environment"]
        assert set(environment) <= KNOWN
        settings = resolve(object(), {key: substitute(value) for key, value in environment.items()})
        assert settings == Settings(device=environment["TRITONE_DEVICE"])

    def test_docker_waits_longer_than_an_orderly_end_takes(self, compose, name):
        grace = float(compose["services"][name]["stop_grace_period"].removesuffix("s"))
        drain = Settings().drain_seconds + 2.0 + 2 * supervisor.PING_TIMEOUT
        assert grace > drain + server.EXIT_TIMEOUT_SECONDS + 3.0 + 5.0

    def test_shared_memory_is_more_than_dockers_64_mb(self, compose, name):
        assert compose["services"][name]["shm_size"] == "1gb"

    def test_voices_are_mounted_where_the_image_looks_for_them(self, compose, name):
        targets = [substitute(volume).split(":")[1] for volume in compose["services"][name]["volumes"]]
        workdir = dict(instructions(DOCKERFILES[name]))["WORKDIR"]
        assert targets == [f"{workdir}/voices", "/models", f"{workdir}/checkpoints"]

    def test_no_more_rights_than_needed(self, compose, name):
        service = compose["services"][name]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service


def test_only_the_gpu_service_reserves_a_gpu(compose):
    devices = compose["services"]["tritone"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["capabilities"] == ["gpu"]
    assert "deploy" not in compose["services"]["tritone-cpu"]


def test_every_variable_that_the_compose_file_reads_is_known():
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert used <= KNOWN | COMPOSE_VARIABLES


def test_the_documentation_knows_every_variable():
    text = (ROOT / "docs/operations.md").read_text() + (ROOT / "docs/deployment.md").read_text()
    assert set(re.findall(r"TRITONE_\w+", text)) >= KNOWN | COMPOSE_VARIABLES


def test_ci_runs_all_checks():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("./tritone test")


def test_paths_in_the_image_are_those_of_the_code():
    assert Path("/opt/tritonserver/bin/tritonserver") == server.IMAGE_BINARY
    assert dict(instructions(DOCKERFILES["tritone"]))["ARG"]
