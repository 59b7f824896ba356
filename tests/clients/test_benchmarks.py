"""The load generators that people measure servers with: vLLM's own, and GuideLLM."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SERVED_NAME, Duo
from tests.engine_settings import ENGINE_ENVIRONMENT
from tests.processes import REPOSITORY

pytestmark = [
    pytest.mark.engine,
    # Each is a process that imports torch and vLLM, or the like.
    pytest.mark.slow,
    pytest.mark.parametrize("duo", ["gemma3"], indirect=True),
]

GUIDELLM = "guidellm==0.8.1"
REQUESTS = 24
STREAMS = 4
INPUT_TOKENS, OUTPUT_TOKENS = 32, 12
TIMEOUT_S = 500


def run(command: Sequence[str | Path], **environment: str) -> str:
    result = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | ENGINE_ENVIRONMENT | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def bench_serve(duo: Duo, folder: Path, *flags: str) -> dict[str, Any]:
    run(
        [
            *(sys.executable, "-m", "tests.vllm_cli", "bench", "serve"),
            *(f"--base-url={duo.pair}", f"--model={duo.checkpoint}"),
            *(f"--served-model-name={SERVED_NAME}", f"--num-prompts={REQUESTS}"),
            *(f"--random-input-len={INPUT_TOKENS}", f"--random-output-len={OUTPUT_TOKENS}"),
            *("--max-concurrency=8", "--ignore-eos", "--disable-tqdm"),
            *("--save-result", f"--result-dir={folder}", "--result-filename=result.json"),
            *flags,
        ]
    )
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
    return result


def test_vllm_bench_with_random_texts(duo: Duo, tmp_path: Path) -> None:
    result = bench_serve(
        duo, tmp_path, "--dataset-name=random", "--backend=openai", "--endpoint=/v1/completions"
    )
    # Its texts may be a token longer or shorter when they are tokenized again.
    assert result["total_input_tokens"] == pytest.approx(REQUESTS * INPUT_TOKENS, rel=0.1)


def test_vllm_bench_with_random_images(duo: Duo, tmp_path: Path) -> None:
    bench_serve(
        duo,
        tmp_path,
        *("--dataset-name=random-mm", "--backend=openai-chat", "--endpoint=/v1/chat/completions"),
        *("--random-mm-base-items-per-request=2", '--random-mm-limit-mm-per-prompt={"image": 4}'),
        "--random-mm-bucket-config={(64, 64, 1): 0.5, (96, 48, 1): 0.5}",
        # Of a vocabulary as small as this one, some seeds draw the token of an image for a text.
        # Beside images such a text is refused.
        "--seed=1",
    )


@pytest.fixture(scope="session")
def guidellm_python() -> Path:
    """An environment of its own: it wants other versions than vLLM."""
    environment = REPOSITORY / ".cache" / GUIDELLM.replace("==", "-")
    complete = environment / ".complete"
    if not complete.exists():
        run([sys.executable, "-m", "venv", "--clear", environment])
        # The torch that is here, as a build for GPUs would bring gigabytes along.
        torch = f"torch=={importlib.metadata.version('torch')}"
        run([environment / "bin" / "pip", "install", "--quiet", GUIDELLM, torch])
        complete.touch()
    return environment / "bin" / "python"


def test_guidellm(duo: Duo, guidellm_python: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(
        [
            *(guidellm_python, "-m", "guidellm", "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={duo.pair},model={SERVED_NAME}"),
            *("--tokenizer", f"kind=huggingface_auto,model={duo.checkpoint}"),
            "--data",
            f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}",
            *("--profile", f"kind=concurrent,streams={STREAMS}"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--output", f"kind=json,path={report}"),
        ]
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    # Those that end in the last moment are not counted by it, in any state.
    totals = metrics["request_totals"]
    assert totals["successful"] == totals["total"] >= REQUESTS - STREAMS
    tokens = metrics["output_token_count"]["successful"]
    assert (tokens["min"], tokens["max"]) == (OUTPUT_TOKENS, OUTPUT_TOKENS)
