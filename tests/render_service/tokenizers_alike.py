"""fastokens beside the usual tokenizer: ``python -m tests.render_service.tokenizers_alike``.

Given checkpoints as arguments. A process of its own, for fastokens takes the place of the usual one
in all of a process.
"""

import random
import sys
from typing import Final

import fastokens
from transformers import AutoTokenizer

_TEXTS: Final = 1500
_SPECIAL: Final = (
    *("<|im_start|>", "<|im_end|>", "<image>", "<start_of_turn>", "<s>", "</s>", "<bos>"),
    *("the", " river", "stone", "123", "'s", "!?", "...", "a", "  b"),
    *("  ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", " \n"),
)
_RANGES: Final = (
    *((0x20, 0x7E), (0x80, 0x24F), (0x300, 0x370), (0x400, 0x4FF), (0x600, 0x6FF)),
    *((0xE00, 0xE7F), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1FAFF)),
    # Joiners, marks and spaces by which scripts and emoji are put together.
    *((0x200D, 0x200D), (0xFE0F, 0xFE0F), (0xFEFF, 0xFEFF), (0xA0, 0xA0), (0x3000, 0x3000)),
)


def _text(draw: random.Random) -> str:
    return "".join(_piece(draw) for _ in range(draw.randint(0, 60)))


def _piece(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.4:
        return draw.choice(_SPECIAL)
    if kind < 0.8:
        return chr(draw.randint(*draw.choice(_RANGES)))
    return " " * draw.randint(0, 5)


def main(checkpoints: list[str]) -> int:
    usual = {path: AutoTokenizer.from_pretrained(path) for path in checkpoints}
    fastokens.patch_transformers()
    draw = random.Random(1)
    texts = [_text(draw) for _ in range(_TEXTS)]
    different = 0
    for path, one in usual.items():
        other = AutoTokenizer.from_pretrained(path)
        assert type(one._tokenizer) is not type(other._tokenizer)
        for text in texts:
            for special in (True, False):
                ids = one.encode(text, add_special_tokens=special)
                alike = ids == other.encode(text, add_special_tokens=special)
                if not alike or one.decode(ids) != other.decode(ids):
                    different += 1
                    print(path, ascii(text))
    print(f"{len(usual)} tokenizers, {_TEXTS} texts each, {different} differences")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
