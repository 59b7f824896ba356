"""What stops the start before anything is loaded."""

import logging
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import generate_service.__main__
import render_service.__main__
from generate_service.settings import GenerateSettings
from render_service.settings import RenderSettings
from shared_protocol.startup.start_checks import address_error, model_error
from tests.processes import free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        yield port


@pytest.mark.parametrize("model", ["/nonexistent", "./nonexistent", "../nonexistent/model"])
def test_a_path_that_is_not_there(model: str) -> None:
    assert model_error(model) == (
        f"--model (TANDEM_MODEL): {model!r} is no folder and no name on the Hub"
    )


def test_a_path_that_is_there(tmp_path: Path) -> None:
    assert model_error(str(tmp_path)) is None
    (tmp_path / "model.gguf").touch()
    assert model_error(str(tmp_path / "model.gguf")) is None


@pytest.mark.parametrize("model", ["owner/name", "name", "s3://bucket/model"])
def test_what_may_be_a_name_is_not_judged(model: str) -> None:
    assert model_error(model) is None


def test_a_free_port_can_be_listened_on_afterwards() -> None:
    port = free_port()
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        assert address_error(host, port) is None
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_taken(host: str, taken_port: int) -> None:
    assert address_error(host, taken_port) == (
        f"--host {host} --port {taken_port} (TANDEM_PORT): nobody can listen there: "
        "Address already in use"
    )


def test_an_address_of_another_host() -> None:
    # Of a network that documentation has for itself.
    complaint = address_error("192.0.2.1", free_port())
    assert complaint is not None
    assert "nobody can listen there" in complaint


def generate(port: int, model: str) -> int:
    settings = GenerateSettings(host="127.0.0.1", port=port)
    return generate_service.__main__.serve(settings, Namespace(model=model))


def render(port: int, model: str) -> int:
    urls = ("http://127.0.0.1:1",)
    settings = RenderSettings(host="127.0.0.1", port=port, generate_url=urls)
    return render_service.__main__.serve(settings, Namespace(model=model))


@pytest.mark.parametrize("serve", [generate, render])
def test_either_service_ends_with_one_line(
    serve: Callable[[int, str], int],
    taken_port: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test may have set up the services' log, which keeps lines from the root's.
    monkeypatch.setattr(logging.getLogger(f"{serve.__name__}_service"), "propagate", True)
    assert serve(taken_port, "owner/name") == 2
    assert serve(free_port(), "/nonexistent") == 2
    taken, missing = caplog.messages
    assert "Address already in use" in taken
    assert "'/nonexistent' is no folder" in missing
