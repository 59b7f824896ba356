"""Requests with sounds to transcribe or translate, right ones and wrong ones."""

import io
from dataclasses import dataclass, field
from typing import Any

import soundfile  # type: ignore[import-untyped]

from tests.models.media import samples, wav

TRANSCRIBE = "/v1/audio/transcriptions"
TRANSLATE = "/v1/audio/translations"


@dataclass(frozen=True)
class SpokenRequest:
    """
    Attributes:
        fields: of the form, beside the file.
        sound: the file; None where the form has none.
    """

    path: str
    sound: bytes | None
    fields: dict[str, Any] = field(default_factory=dict)

    def form(self) -> dict[str, Any]:
        """What httpx is to send."""
        files = {} if self.sound is None else {"file": ("sound", self.sound)}
        # A form of several parts, also where no file is among them.
        return {
            "files": {**files, **{name: (None, str(value)) for name, value in self.fields.items()}}
        }


def spoken_requests(longest_s: float) -> dict[str, SpokenRequest]:
    """
    Args:
        longest_s: more than the model hears at a time.
    """
    short, long = wav(1, 2.0, 16_000), wav(3, longest_s, 16_000)
    requests = {}
    for path in (TRANSCRIBE, TRANSLATE):
        task = path.rpartition("/")[2]
        for name, (sound, fields) in _forms(short, long).items():
            limited = {"model": "served", "max_completion_tokens": 12, **fields}
            given = {name: value for name, value in limited.items() if value is not None}
            requests[f"{task}: {name}"] = SpokenRequest(path, sound, given)
    return requests


def _forms(short: bytes, long: bytes) -> dict[str, tuple[bytes | None, dict[str, Any]]]:
    streamed = {"stream": True, "stream_include_usage": True}
    return {
        "one sound": (short, {"language": "en"}),
        "another": (wav(2, 2.0, 16_000), {"language": "en"}),
        "the language is not said": (short, {}),
        "another language": (short, {"language": "de"}),
        "and another to answer in": (short, {"language": "de", "to_language": "fr"}),
        "at 8 kHz": (wav(1, 2.0, 8_000), {"language": "en"}),
        "stereo, as FLAC": (_stereo("FLAC"), {"language": "en"}),
        "as MP3": (_stereo("MP3"), {"language": "en"}),
        "longer than is heard at a time": (long, {"language": "en"}),
        "longer, streamed": (long, {"language": "en", **streamed}),
        "longer, with times": (long, {"language": "en", "response_format": "verbose_json"}),
        "streamed": (short, {"language": "en", "stream": True}),
        "streamed, with usage": (short, {"language": "en", **streamed}),
        "streamed, with usage in every event": (
            short,
            {"language": "en", **streamed, "stream_continuous_usage_stats": True},
        ),
        "streamed, the language is not said": (short, streamed),
        "as text": (short, {"language": "en", "response_format": "text"}),
        "with times": (short, {"language": "en", "response_format": "verbose_json"}),
        "with times, the language is not said": (short, {"response_format": "verbose_json"}),
        "another language is heard": (wav(3, 4.0, 16_000), {"response_format": "verbose_json"}),
        "with speakers": (short, {"language": "en", "response_format": "diarized_json"}),
        "as subtitles": (short, {"language": "en", "response_format": "srt"}),
        "with a prompt": (short, {"language": "en", "prompt": "The quick brown fox"}),
        "with words to know": (short, {"language": "en", "hotwords": "fox, dog"}),
        "sampled": (short, {"language": "en", "temperature": 0.9, "seed": 7}),
        "with penalties": (
            short,
            {"language": "en", "frequency_penalty": 1.5, "repetition_penalty": 1.4},
        ),
        "two beams": (short, {"language": "en", "use_beam_search": True, "n": 2}),
        "without a limit": (short, {"language": "en", "max_completion_tokens": None}),
        "without a model": (short, {"language": "en", "model": None}),
        "an unknown model": (short, {"model": "other"}),
        "an unknown language": (short, {"language": "xx"}),
        "an unknown format": (short, {"response_format": "pdf"}),
        "usage without a stream": (short, {"stream_include_usage": True}),
        "beams in a stream": (short, {"use_beam_search": True, "stream": True}),
        "times in a stream": (short, {"response_format": "verbose_json", "stream": True}),
        "an impossible temperature": (short, {"language": "en", "temperature": -1}),
        "no sound": (b"not a sound", {"language": "en"}),
        "nothing": (b"", {"language": "en"}),
        "half a sound": (short[:1000], {"language": "en"}),
        "no file": (None, {"language": "en"}),
        "text for a file": (None, {"language": "en", "file": "words"}),
    }


def _stereo(form: str) -> bytes:
    file = io.BytesIO()
    waves = samples(5, 2.0, 44_100)
    soundfile.write(file, [*zip(waves, waves[::-1], strict=True)], 44_100, format=form)
    return file.getvalue()
