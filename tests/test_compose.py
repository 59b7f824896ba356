"""docker-compose.yml and the Dockerfiles that it builds."""

import http.server
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest

from generate_service.settings import GenerateSettings, parse_generate_args
from render_service.settings import COMMAND_LINE, RenderSettings, parse_render_args
from shared_protocol.startup.server import CUT_S
from tests.compose_processes import compose_file, container_process
from tests.processes import REPOSITORY

with warnings.catch_warnings():
    # torch warns of its own functions while vLLM is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    COMMAND_LINE.load_vllm()

COMPOSE = compose_file()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

PLAIN = {"HF_TOKEN"}
"""Variables that are not settings of the services."""

ON_BOTH = {
    "TANDEM_MODEL": "/models/another",
    "TANDEM_SERVED_MODEL_NAME": "another",
    "TANDEM_DTYPE": "float32",
    "TANDEM_ENABLE_PROMPT_EMBEDS": "0",
    "TANDEM_REASONING_PARSER": "qwen3",
    "TANDEM_GENERATE_API_KEY": "between the two",
    "HF_TOKEN": "of the hub",
}
ON_RENDER = {
    "TANDEM_API_KEY": "secret",
    "TANDEM_ENABLE_AUTO_TOOL_CHOICE": "1",
    "TANDEM_TOOL_CALL_PARSER": "hermes",
}
ON_GENERATE = {"TANDEM_MAX_MODEL_LEN": "512", "TANDEM_GPU_MEMORY_UTILIZATION": "0.5"}
PASSED_THROUGH = ON_BOTH | ON_RENDER | ON_GENERATE

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


def test_services() -> None:
    assert SERVICES.keys() == {"render", "generate", "generate-gpu"}
    assert [name for name in SERVICES if "profiles" not in SERVICES[name]] == ["render", "generate"]
    assert SERVICES["generate-gpu"]["profiles"] == ["gpu"]


@each_service
def test_a_service_is_watched_and_started_again(service: dict[str, Any]) -> None:
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"].keys() == {
        "test",
        "interval",
        "timeout",
        "retries",
        "start_period",
    }


@each_service
def test_a_service_is_not_killed_before_it_has_said_so(service: dict[str, Any]) -> None:
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    for settings in (GenerateSettings, RenderSettings):
        assert grace_s > settings.shutdown_grace_s + CUT_S


@each_service
def test_no_path_of_a_host(service: dict[str, Any]) -> None:
    assert service["volumes"] == ["models:/models:ro"]
    assert service["build"]["context"] == "."
    assert service.keys().isdisjoint({"env_file", "secrets", "configs", "privileged"})


def test_the_models_come_from_a_named_volume() -> None:
    assert COMPOSE["volumes"] == {"models": {"name": "tandem-models", "external": True}}


def test_services_can_be_scaled() -> None:
    for service in SERVICES.values():
        assert "container_name" not in service
    assert SERVICES["render"]["ports"] == [{"target": 8000, "published": "8000-8009"}]
    assert "ports" not in SERVICES["generate"]


def test_render_finds_either_kind_of_generate_service() -> None:
    environment = container_process("render", {}).environment
    assert environment["TANDEM_GENERATE_URL"] == "http://generate:8100"
    assert container_process("generate", {}).environment["TANDEM_PORT"] == "8100"
    assert container_process("generate-gpu", {}).environment["TANDEM_PORT"] == "8100"
    assert SERVICES["generate-gpu"]["networks"] == {"default": {"aliases": ["generate"]}}


def test_the_gpu_is_asked_for_where_it_is_used() -> None:
    (device,) = SERVICES["generate-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "deploy" not in SERVICES["generate"]


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_starts_as_it_is_configured(name: str) -> None:
    process = container_process(name, {"TANDEM_MODEL": "/models/another"})
    program = "render_service" if name == "render" else "generate_service"
    assert process.command == ["python3", "-m", program]
    assert all(variable.startswith("TANDEM_") for variable in process.environment.keys() - PLAIN)
    parse = parse_render_args if name == "render" else parse_generate_args
    settings, args = parse(process.command[3:], process.environment)
    assert args.model == "/models/another"
    assert args.served_model_name == ["HuggingFaceTB/SmolVLM-256M-Instruct"]
    assert args.dtype == "bfloat16"
    assert args.enable_prompt_embeds is True
    assert settings.port == (8000 if name == "render" else 8100)


@pytest.mark.parametrize("name", SERVICES)
def test_what_reaches_the_container(name: str) -> None:
    own = ON_RENDER if name == "render" else ON_GENERATE
    environment = container_process(name, PASSED_THROUGH).environment
    fixed = {"TANDEM_PORT"} | ({"TANDEM_GENERATE_URL"} if name == "render" else set())
    assert environment.keys() == ON_BOTH.keys() | own.keys() | fixed
    for variable, value in (ON_BOTH | own).items():
        assert environment[variable] == value


def test_keys_and_parsers_hold_on_render() -> None:
    process = container_process("render", PASSED_THROUGH)
    settings, args = parse_render_args([], process.environment)
    assert args.api_key == ["secret"]
    assert settings.generate_api_key == "between the two"
    assert (args.enable_auto_tool_choice, args.tool_call_parser) == (True, "hermes")
    assert args.reasoning_parser == "qwen3"


@pytest.mark.parametrize("name", ["generate", "generate-gpu"])
def test_keys_and_parsers_hold_on_generate(name: str) -> None:
    process = container_process(name, PASSED_THROUGH)
    settings, args = parse_generate_args([], process.environment)
    assert settings.generate_api_key == "between the two"
    assert args.reasoning_parser == "qwen3"
    assert (args.max_model_len, args.gpu_memory_utilization) == (512, 0.5)


def test_what_nobody_set_is_not_set() -> None:
    render, render_args = parse_render_args([], container_process("render", {}).environment)
    generate, args = parse_generate_args([], container_process("generate", {}).environment)
    assert render.generate_api_key == generate.generate_api_key == ""
    assert not render_args.api_key
    assert (render_args.enable_auto_tool_choice, render_args.tool_call_parser) == (False, None)
    assert not render_args.reasoning_parser
    assert not args.reasoning_parser
    assert args.max_model_len is None


@pytest.mark.parametrize("name", SERVICES)
def test_the_readme_names_what_reaches_the_container(name: str) -> None:
    text = (REPOSITORY / "README.md").read_text()
    fixed = {"TANDEM_PORT", "TANDEM_GENERATE_URL"}
    for variable in container_process(name, {}).environment.keys() - fixed:
        assert f"`{variable}`" in text


@pytest.mark.parametrize("name", SERVICES)
def test_the_health_check_reads_the_status(name: str) -> None:
    process = container_process(name, {})
    with answering(HTTPStatus.OK) as port:
        assert health(process.healthcheck, port) == 0
    with answering(HTTPStatus.SERVICE_UNAVAILABLE) as port:
        assert health(process.healthcheck, port) == 1
    # Nobody listens any more.
    assert health(process.healthcheck, port) == 1


def health(command: list[str], port: int) -> int:
    program, *arguments = command
    assert program == "python3"
    environment = {"TANDEM_PORT": str(port)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, stderr=subprocess.DEVNULL
    ).returncode


@contextmanager
def answering(status: HTTPStatus) -> Iterator[int]:
    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ready" else HTTPStatus.NOT_FOUND)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@each_service
def test_the_dockerfile_copies_what_is_there(service: dict[str, Any]) -> None:
    dockerfile = (REPOSITORY / service["build"]["dockerfile"]).read_text()
    sources = [
        source
        for sources in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE)
        for source in sources.split()
    ]
    assert {"shared_protocol", "generate_service", "render_service"} <= set(sources)
    let_through = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (REPOSITORY / source).exists()
        assert f"!{source}" in let_through


@each_service
def test_the_dockerfile_names_no_package_index(service: dict[str, Any]) -> None:
    dockerfile = (REPOSITORY / service["build"]["dockerfile"]).read_text()
    assert "://" not in dockerfile
    assert all("--no-deps" in line for line in dockerfile.splitlines() if "pip install" in line)
