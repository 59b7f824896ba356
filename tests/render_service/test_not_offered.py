"""Endpoints of vLLM's that are not offered."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient, WebSocketDenialResponse

from render_service.api_endpoints import NOT_OFFERED
from render_service.not_offered import not_offered_router


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(not_offered_router())
    with TestClient(app) as client:
        yield client


def error_of(endpoint: str) -> dict[str, object]:
    message = f"{endpoint} is not offered: {NOT_OFFERED[endpoint]}."
    return {"message": message, "type": "NotImplementedError", "param": None, "code": 501}


@pytest.mark.parametrize(
    "endpoint", [endpoint for endpoint in NOT_OFFERED if not endpoint.startswith("WEBSOCKET")]
)
def test_the_answer_is_501_and_says_why(client: TestClient, endpoint: str) -> None:
    answer = client.request(*endpoint.split())
    assert answer.status_code == 501
    assert answer.json() == {"error": error_of(endpoint)}


def test_the_body_is_not_looked_at(client: TestClient) -> None:
    answer = client.post("/inference/v1/generate", content=b"\xff")
    assert answer.status_code == 501


def test_a_websocket_is_denied_with_501() -> None:
    app = FastAPI()
    app.include_router(not_offered_router())
    denied = TestClient(app).websocket_connect("/v1/realtime")
    with pytest.raises(WebSocketDenialResponse) as denial, denied:
        pass
    assert denial.value.status_code == 501
    assert denial.value.json() == {"error": error_of("WEBSOCKET /v1/realtime")}


def test_they_are_not_in_the_description_of_the_api(client: TestClient) -> None:
    assert client.get("/openapi.json").json()["paths"] == {}
