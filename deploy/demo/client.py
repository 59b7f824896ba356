"""What the demo asks, with the official client."""

import base64
import io
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import openai
import torch
from PIL import Image, ImageDraw
from safetensors import safe_open
from transformers import AutoTokenizer

Part = dict[str, Any]


def run(render_url: str, model: str, checkpoint: Path) -> None:
    """Ask three things and print the answers.

    Raises:
        SystemExit: if an answer is not what it should be.
    """
    client = openai.OpenAI(base_url=f"{render_url}/v1", api_key="none")
    _ask_for_the_capital(client, model)
    picture = _image_part()
    _heading("(b) A chat with a picture")
    _chat(client, render_url, model, [_text_part("What is in the picture?"), picture])
    _heading("(c) A chat that mixes prompt embeddings with a picture")
    secret = "The color is purple."
    print(f"   the embeddings, from the model's own table, hold: {secret!r}")
    parts = [picture, _embeds_part(checkpoint, secret), _text_part(" Please tell me the color.")]
    _expect("purple", _chat(client, render_url, model, parts))


def _ask_for_the_capital(client: openai.OpenAI, model: str) -> None:
    question = "What is the capital of France?"
    _heading("(a) A text, streamed")
    print(f"   {question}\n   > ", end="")
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0.0,
        max_tokens=32,
        stream=True,
    )
    answer = ""
    for chunk in stream:
        piece = chunk.choices[0].delta.content or ""
        print(piece, end="", flush=True)
        answer += piece
    print()
    _expect("Paris", answer)


def _chat(client: openai.OpenAI, render_url: str, model: str, parts: list[Part]) -> str:
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0.0,
        "max_tokens": 24,
    }
    _show_placeholders(render_url, request)
    answer = client.chat.completions.create(**request).choices[0].message.content
    print(f"   > {answer!r}")
    return answer or ""


def _show_placeholders(render_url: str, request: dict[str, Any]) -> None:
    """Print where the request that crosses the wire has its media."""
    response = httpx.post(
        f"{render_url}/v1/chat/completions/render", json=request, timeout=60.0, trust_env=False
    )
    response.raise_for_status()
    wire = response.json()
    print(f"   {len(wire['token_ids'])} prompt tokens cross the wire; their placeholders:")
    for modality, placeholders in wire["features"]["mm_placeholders"].items():
        for placeholder in placeholders:
            mask = placeholder.pop("is_embed", None)
            runs = "all embedded" if mask is None else f"is_embed {_runs(mask)}"
            print(f"   {modality}: {json.dumps(placeholder)} {runs}")


def _runs(mask: list[bool]) -> str:
    """Write a mask as run lengths: E4 for four embedded positions, .2 for two that are not."""
    return " ".join(
        f"{'E' if embedded else '.'}{sum(1 for _ in run)}" for embedded, run in groupby(mask)
    )


def _heading(text: str) -> None:
    print(f"\n{text}")


def _expect(word: str, answer: str) -> None:
    if word not in answer:
        raise SystemExit(f"the answer should have named {word}")


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _image_part() -> Part:
    picture = Image.new("RGB", (96, 64), "white")
    ImageDraw.Draw(picture).ellipse((24, 8, 72, 56), fill="red")
    file = io.BytesIO()
    picture.save(file, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def _embeds_part(checkpoint: Path, text: str) -> Part:
    """Embed `text` as the model would, and pack the ``(length, hidden_size)`` tensor."""
    token_ids = AutoTokenizer.from_pretrained(checkpoint).encode(text, add_special_tokens=False)
    file = io.BytesIO()
    torch.save(_embedding_table(checkpoint)[token_ids].clone(), file)
    return {"type": "prompt_embeds", "data": base64.b64encode(file.getvalue()).decode()}


def _embedding_table(checkpoint: Path) -> torch.Tensor:
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if name.endswith("embed_tokens.weight"):
                    table: torch.Tensor = tensors.get_tensor(name)
                    return table
    raise LookupError(f"{checkpoint} has no embedding table")
