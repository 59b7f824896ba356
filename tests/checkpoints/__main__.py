"""`python -m tests.checkpoints gemma3 FOLDER [--vocab-headroom]`"""

import argparse
from pathlib import Path

from tests.checkpoints import FAMILIES, build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints")
    parser.add_argument("name", choices=FAMILIES)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--vocab-headroom",
        action="store_true",
        help="give the model's vocabulary spare rows beyond the tokenizer's",
    )
    arguments = parser.parse_args()
    print(build(arguments.name, arguments.folder, vocab_headroom=arguments.vocab_headroom))


if __name__ == "__main__":
    main()
