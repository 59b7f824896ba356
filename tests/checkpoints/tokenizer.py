"""A small byte-level BPE tokenizer: any text goes through it, English in fewer tokens."""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, PreTrainedTokenizerFast

# Rows that a model's vocabulary has beyond the tokenizer's, where a test wants some.
SPARE_ROWS = 16

_MERGES = 256
_CORPUS = (
    "The quick brown fox jumps over the lazy dog while the band plays on.",
    "What is the capital of France? The capital of France is Paris.",
    "Describe this image in a few words, then say which colour you see first.",
    "You are a helpful assistant. Please answer the question of the user.",
    "Once upon a time there was a small model that had seen only ten sentences.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    '{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}',
    "In 2024 there were 366 days, and 1234567890 is a number with ten digits.",
    "Please tell me the color. The color is purple, and the sky above is blue.",
    "Two pictures are not the same when their pixels differ from one another.",
)


def train(
    special: Sequence[str],
    *,
    plain: Sequence[str] = (),
    named: Mapping[str, str],
) -> PreTrainedTokenizerFast:
    """Train a tokenizer in which each of `special` and `plain` is one token.

    Ids: `special` from 0, then the 256 bytes, the merges, then `plain`, which unlike the special
    tokens stay when a decoder skips special ones. `named` maps names that transformers knows, or
    that a processor asks for (`eos_token`, `image_token`), to tokens out of `special`.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + len(alphabet) + _MERGES,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in special],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(_CORPUS, trainer)
    bpe.add_tokens([AddedToken(token, normalized=False) for token in plain])
    known = ("bos_token", "eos_token", "pad_token", "unk_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in named.items() if name in known},
        extra_special_tokens={name: token for name, token in named.items() if name not in known},
    )
