"""`python -m tests.hostile [--count N] [FAMILY ...]`: a long attack, family by family."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from shared_protocol.startup import vllm_cpu
from tests.checkpoints import checkpoint
from tests.engine_settings import SMALL_CACHES_ENVIRONMENT, SMALL_CACHES_FLAGS
from tests.hostile.fuzzing import Attack, attack, true_requests
from tests.models.families import COMMON_FLAGS, FAMILIES
from tests.models.requests import SERVED_NAME, family_chats
from tests.pair import Pair
from tests.soak.watching import Sample, growth, processes_of, take_sample

ATTACKED = ("gemma3", "gemma4", "smolvlm", "qwen2_vl", "qwen2_5_omni", "llava_onevision")

_GROWTH_LIMIT = 4096.0
"""Bytes per mutant: most carry pictures, of which one that stays holds many times that."""

_SHOWN = 16

logger = logging.getLogger(__name__)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=ATTACKED)
    parser.add_argument("--count", type=int, default=48_000, help="mutants over all families")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    vllm_cpu.prepare_environment()
    each = -(-options.count // len(options.families))
    failed = False
    for name in options.families:
        seen = attack_family(name, seed=options.seed, count=each)
        logger.info("%s: %s", name, dict(seen.statuses))
        for failure in seen.failures:
            logger.error("%s: %s", name, failure)
        failed |= bool(seen.failures)
    sys.exit(failed)


def attack_family(name: str, *, seed: int, count: int) -> Attack:
    family = FAMILIES[name]
    flags = (f"--served-model-name={SERVED_NAME}", "--max-model-len=4096", *COMMON_FLAGS)
    logs = Path(tempfile.mkdtemp(prefix="tandem-fuzz-"))
    with Pair(
        checkpoint(family.checkpoint, vocab_headroom=True),
        logs=logs,
        flags=(*flags, *family.flags),
        render_flags=family.front_flags,
        generate_flags=(*family.engine_flags, *SMALL_CACHES_FLAGS),
        generate_env=SMALL_CACHES_ENVIRONMENT,
    ) as pair:
        return asyncio.run(_attack(pair, name, seed, count))


async def _attack(pair: Pair, name: str, seed: int, count: int) -> Attack:
    family = FAMILIES[name]
    wanted = ("one", "two side by side", "all, in one message", "none", "with embeddings")
    chats = [
        chat | {"max_tokens": 3, "stream": False, "stream_options": None}
        for case, chat in family_chats(family, pair.replicas[0].hidden_size()).items()
        if case.partition(", ")[2] in wanted or case in wanted
    ]
    bodies = await true_requests(pair.url, chats)
    (replica,) = pair.replicas
    processes = processes_of({"generate": replica.pid})
    samples: dict[str, list[Sample]] = {process: [] for process in processes}

    def look(sent: int) -> None:
        for process, handle in processes.items():
            samples[process].append(take_sample(handle, sent))

    seen = await attack(replica.url, bodies, seed=seed, count=count, look=look)
    for process, each in samples.items():
        grown = growth(each)
        logger.info("%s: %s grew by %.0f bytes per mutant", name, process, grown.bytes_per_request)
        mebibytes = [round(sample.memory / 2**20) for sample in each[:: -(-len(each) // _SHOWN)]]
        logger.info("%s: %s had %s MiB on the way", name, process, mebibytes)
        if grown.bytes_per_request > _GROWTH_LIMIT:
            seen.failures.append(f"{process} grew by {grown.bytes_per_request:.0f} bytes a mutant")
    return seen


if __name__ == "__main__":
    main()
