"""``python -m deploy.demo``: both services on one machine, and a client that talks to them."""

import argparse
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from deploy.demo import client
from deploy.demo.checkpoint import build
from deploy.demo.services import Service, running

REPOSITORY = Path(__file__).parents[2]
CHECKPOINT = REPOSITORY / ".cache" / "demo"
LOGS = REPOSITORY / ".cache" / "demo-logs"
GENERATE_URL = "http://127.0.0.1:8100"
RENDER_URL = "http://127.0.0.1:8000"
MODEL_NAME = "tandem-demo"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo", description=__doc__)
    parser.add_argument(
        "--serve", action="store_true", help="leave the services running in the foreground"
    )
    serve = parser.parse_args().serve
    print(
        "The demo model has the shape of SmolVLM: the language weights are those of "
        "SmolLM2-135M-Instruct, the vision tower is untrained. It reads, and sees only noise."
    )
    # Both signals unwind the stack, which stops the services on its way.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    try:
        model = build(CHECKPOINT)
        with running_pair(model):
            if serve:
                print(f"Serving {MODEL_NAME} on {RENDER_URL}/v1; Ctrl-C ends it.", flush=True)
                signal.pause()
            client.run(RENDER_URL, MODEL_NAME, model)
    except KeyboardInterrupt:
        print()
    print("Both services have been shut down.")


def running_pair(model: Path) -> AbstractContextManager[None]:
    """Start one generate and one render service; they are ready inside the context."""
    flags = [
        *(f"--model={model}", f"--served-model-name={MODEL_NAME}", "--host=127.0.0.1"),
        *("--enable-prompt-embeds", "--max-model-len=2048"),
    ]
    generate = Service(
        "generate",
        [
            *(sys.executable, "-m", "generate_service", *flags, "--port=8100"),
            *("--enforce-eager", "--max-num-seqs=8", "--gpu-memory-utilization=0.3"),
        ],
        GENERATE_URL,
        LOGS / "generate.log",
    )
    render = Service(
        "render",
        [
            *(sys.executable, "-m", "render_service", *flags, "--port=8000"),
            f"--generate-url={GENERATE_URL}",
        ],
        RENDER_URL,
        LOGS / "render.log",
    )
    return running([generate, render])


if __name__ == "__main__":
    main()
