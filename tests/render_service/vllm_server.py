"""vLLM's own server without an engine: every endpoint that it can have, and what they take."""

import ast
import typing
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import vllm.entrypoints
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute
from pydantic import BaseModel
from starlette.routing import Mount, Route
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.tasks import FRONTEND_TASKS, GENERATION_TASKS, POOLING_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

SWITCHES: Final = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Variables that have to be set while `build_server` runs."""

_ENTRYPOINTS: Final = Path(vllm.entrypoints.__file__).parent
_OF_OTHER_COMMANDS: Final = frozenset({"cli", "launchers"})
_DECLARING: Final = frozenset({"get", "post", "put", "patch", "delete", "websocket"})


def build_server() -> FastAPI:
    """Build vLLM's application for a model of all tasks, with every flag that adds endpoints."""
    tasks = (*GENERATION_TASKS, *POOLING_TASKS, *FRONTEND_TASKS)
    model_config = SimpleNamespace(
        get_pooling_task=lambda tasks: "embed",
        hf_config=SimpleNamespace(num_labels=1),
    )
    server: FastAPI = build_app(_arguments(), tasks, model_config)
    return server


def _arguments() -> Namespace:
    flags = [
        "--enable-scale-out",
        "--enable-tokenizer-info-endpoint",
        "--enable-fault-tolerance",
        '--profiler-config={"profiler": "cuda"}',
    ]
    parsed: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    return parsed


def endpoints(server: FastAPI) -> set[str]:
    return {endpoint for route in server.routes for endpoint in _endpoints_of(route)}


def _endpoints_of(route: Any) -> Iterator[str]:
    if isinstance(route, APIWebSocketRoute):
        yield f"WEBSOCKET {route.path}"
    elif isinstance(route, Mount):
        yield f"GET {route.path}"
    else:
        assert isinstance(route, Route | APIRoute)
        yield from (f"{method} {route.path}" for method in (route.methods or set()) - {"HEAD"})


def declared_endpoints() -> set[str]:
    """Find the endpoints in vLLM's source, also those that need packages which are not here."""
    return {
        endpoint
        for file in _ENTRYPOINTS.rglob("*.py")
        if file.relative_to(_ENTRYPOINTS).parts[0] not in _OF_OTHER_COMMANDS
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        for endpoint in _declared(node)
    }


def _declared(call: ast.Call) -> Iterator[str]:
    match call:
        case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str(path)), *_]):
            if not path.startswith("/"):
                return
            if name in _DECLARING:
                yield f"{name.upper()} {path}"
            elif name == "mount":
                yield f"GET {path}"
            elif name == "add_api_route":
                (methods,) = (word.value for word in call.keywords if word.arg == "methods")
                yield from (f"{method} {path}" for method in ast.literal_eval(methods))


def fields_by_endpoint(server: FastAPI) -> dict[str, set[str]]:
    """Return the fields of each body that is one of vLLM's classes, or of a union of them."""
    found: dict[str, set[str]] = {}
    for route in server.routes:
        if isinstance(route, APIRoute):
            classes = [
                kind
                for parameter in route.dependant.body_params
                for kind in _classes(parameter.field_info.annotation)
            ]
            names = {name for kind in classes for name in kind.model_fields}
            found |= {endpoint: names for endpoint in _endpoints_of(route) if names}
    return found


def _classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for member in typing.get_args(annotation) for kind in _classes(member)]


def declared_fields(module: str, name: str) -> set[str]:
    """Find the fields of a class in vLLM's source that needs packages which are not here."""
    source = _ENTRYPOINTS.joinpath(module).read_text()
    (body,) = (
        node.body
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return {
        statement.target.id
        for statement in body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
