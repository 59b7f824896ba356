"""A structure and a tool to ask models for; both have few values, so that any model gets done."""

from typing import Any, Literal

from pydantic import BaseModel

from tests.pictures import data_url, png

PROMPT = "How is the weather in Paris?"
IMAGE_URL = data_url(png(1))


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Berlin"]
    hot: bool


SCHEMA: dict[str, Any] = Weather.model_json_schema()
