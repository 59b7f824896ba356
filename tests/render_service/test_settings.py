"""The render service's command line and environment."""

import subprocess
import sys
import warnings
from argparse import Namespace
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest

from render_service.settings import COMMAND_LINE, RenderSettings, parse_render_args
from tests.parser_plugin import write_parser_plugin
from tests.processes import REPOSITORY

with warnings.catch_warnings():
    # torch warns of its own functions while vLLM is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    COMMAND_LINE.load_vllm()

MINIMAL = ("--model=m", "--generate-url=http://generate:8100")


def parse(*argv: str, **environ: str) -> tuple[RenderSettings, Namespace]:
    return parse_render_args(argv, environ)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str, **environ: str) -> str:
    """What is printed when the service does not start."""
    with pytest.raises(SystemExit) as stop:
        parse(*argv, **environ)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("python -m render_service: error: ")
    return err.removeprefix("python -m render_service: error: ").strip()


def test_defaults() -> None:
    settings, args = parse(*MINIMAL)
    assert asdict(settings) == {
        "generate_url": ("http://generate:8100",),
        "host": "0.0.0.0",
        "port": 8000,
        "max_body_bytes": 64 * 2**20,
        "max_bodies_bytes": 2**31,
        "max_concurrent_requests": 2048,
        "max_generations_per_request": 2048,
        "max_head_bytes": 64 * 2**10,
        "request_read_timeout_s": 120.0,
        "response_write_timeout_s": 60.0,
        "api_key_file": "",
        "max_requests_per_key": 0,
        "requests_per_minute_per_key": 0,
        "ready_addresses": "off",
        "wire": "binary",
        "generate_api_key": "",
        "generate_api_key_file": "",
        "generate_ca_file": "",
        "generate_cert_file": "",
        "generate_key_file": "",
        "connect_timeout_s": 3.0,
        "send_timeout_s": 60.0,
        "probe_interval_s": 0.3,
        "probe_timeout_s": 0.5,
        "replica_stall_s": 20.0,
        "startup_timeout_s": 600.0,
        "allow_private_media_addresses": (),
        "max_media_redirects": 9,
        "media_fetch_timeout_s": 120.0,
        "max_media_bytes": 256 * 2**20,
        "image_formats": (
            *("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA"),
            *("TIFF", "WEBP"),
        ),
        "max_image_pixels": 178_956_970,
        "decoded_images_bytes": 256 * 2**20,
        "max_audio_s": 600,
        "max_video_frames": 432_000,
        "shutdown_grace_s": 25.0,
        "max_video_decoded_bytes": 5 * 2**30,
    }
    assert (args.model, args.host, args.port) == ("m", "0.0.0.0", 8000)
    with pytest.raises(FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]


def test_the_namespace_makes_engine_arguments() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    _, args = parse(
        *MINIMAL,
        "--max_model_len=1k",
        "--limit-mm-per-prompt.image=2",
        "--tool-call-parser=hermes",
        "--reasoning-parser=qwen3",
    )
    engine_args = AsyncEngineArgs.from_cli_args(args)
    assert engine_args.model == "m"
    assert engine_args.max_model_len == 1000
    assert engine_args.limit_mm_per_prompt == {"image": 2}
    assert args.tool_call_parser == "hermes"
    assert engine_args.create_structured_outputs_config().reasoning_parser == "qwen3"


def test_every_kind_of_flag_from_the_environment() -> None:
    settings, args = parse(
        TANDEM_MODEL="m",
        TANDEM_GENERATE_URL="http://a:8100, http://b:8100/",
        TANDEM_PORT="80",
        TANDEM_PROBE_INTERVAL_S="0.5",
        TANDEM_MAX_MODEL_LEN="1024",
        TANDEM_ENABLE_PROMPT_EMBEDS="1",
        TANDEM_ENABLE_LOG_DELTAS="FALSE",
        TANDEM_SERVED_MODEL_NAME="large small",
        TANDEM_MIDDLEWARE="one.Middleware,two.Middleware",
        TANDEM_ALLOWED_ORIGINS='["https://example.org"]',
        TANDEM_HF_OVERRIDES='{"architectures": ["A"]}',
        TANDEM_RESPONSE_ROLE="model",
        HOME="/nowhere",
    )
    assert settings.generate_url == ("http://a:8100", "http://b:8100")
    assert (settings.port, args.port) == (80, 80)
    assert settings.probe_interval_s == 0.5
    assert args.max_model_len == 1024
    assert args.enable_prompt_embeds is True
    assert args.enable_log_deltas is False
    assert args.served_model_name == ["large", "small"]
    assert args.middleware == ["one.Middleware", "two.Middleware"]
    assert args.allowed_origins == ["https://example.org"]
    assert args.hf_overrides == {"architectures": ["A"]}
    assert args.response_role == "model"


def test_the_command_line_wins() -> None:
    settings, args = parse(
        *MINIMAL,
        *("--port", "9000", "--middleware=mine", "--no-enable-prompt-embeds"),
        *("--hf-overrides.b", "2"),
        TANDEM_MODEL="other",
        TANDEM_GENERATE_URL="http://other:1",
        TANDEM_PORT="80",
        TANDEM_MIDDLEWARE="other",
        TANDEM_ENABLE_PROMPT_EMBEDS="1",
        TANDEM_HF_OVERRIDES='{"a": 1}',
    )
    assert settings.generate_url == ("http://generate:8100",)
    assert (settings.port, args.port) == (9000, 9000)
    assert args.model == "m"
    assert args.middleware == ["mine"]
    assert args.enable_prompt_embeds is False
    assert args.hf_overrides == {"b": 2}


def test_an_empty_variable_is_as_good_as_none() -> None:
    settings, args = parse(*MINIMAL, TANDEM_PORT="", TANDEM_API_KEY="", TANDEM_TYPO="")
    assert settings.port == 8000
    assert args.api_key is None


def test_networks_and_formats_of_media() -> None:
    settings, _ = parse(
        *MINIMAL,
        *("--allow-private-media-addresses=10.0.0.0/8", "--allow-private-media-addresses=::1"),
        TANDEM_IMAGE_FORMATS="png,jpeg",
    )
    assert settings.allow_private_media_addresses == ("10.0.0.0/8", "::1/128")
    assert settings.image_formats == ("PNG", "JPEG")
    settings, _ = parse(*MINIMAL, TANDEM_ALLOW_PRIVATE_MEDIA_ADDRESSES="all")
    assert settings.allow_private_media_addresses == ("all",)


def test_several_generate_services() -> None:
    settings, _ = parse(
        "--model", "m", "--generate-url", "http://a", "--generate-url=https://b:8100/"
    )
    assert settings.generate_url == ("http://a", "https://b:8100")


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        ((), {}, "--model (TANDEM_MODEL) is required"),
        (("--model=m",), {}, "--generate-url (TANDEM_GENERATE_URL) is required"),
        (
            ("--model=m", "--generate-url=generate:8100"),
            {},
            "--generate-url (TANDEM_GENERATE_URL): 'generate:8100' is not a URL like "
            "http://HOST:PORT",
        ),
        (
            ("--model=m", "--generate-url=http://user:secret@generate:81000"),
            {},
            "--generate-url (TANDEM_GENERATE_URL): 'http://***@generate:81000' is not a URL like "
            "http://HOST:PORT",
        ),
        (
            ("--model=m",),
            {"TANDEM_GENERATE_URL": "http://a:1 http://a:1/"},
            "--generate-url (TANDEM_GENERATE_URL): one value is given twice",
        ),
        (
            MINIMAL,
            {"TANDEM_PORT": "99999"},
            "--port (TANDEM_PORT): '99999' is not a port between 1 and 65535",
        ),
        (
            (*MINIMAL, "--max-body-bytes=0"),
            {},
            "--max-body-bytes (TANDEM_MAX_BODY_BYTES): '0' is not a whole number above 0",
        ),
        (
            (*MINIMAL, "--startup-timeout-s=nan"),
            {},
            "--startup-timeout-s (TANDEM_STARTUP_TIMEOUT_S): 'nan' is not a number of seconds "
            "above 0",
        ),
        (
            (*MINIMAL, "--allow-private-media-addresses=10.0.0.1/8"),
            {},
            "--allow-private-media-addresses (TANDEM_ALLOW_PRIVATE_MEDIA_ADDRESSES): "
            "'10.0.0.1/8' is not a network like 10.0.0.0/8, or all",
        ),
        (
            (*MINIMAL, "--wire=yaml"),
            {},
            "--wire (TANDEM_WIRE): 'yaml' is not one of binary, json",
        ),
        ((*MINIMAL, "--port"), {}, "--port (TANDEM_PORT): expected one argument"),
        (
            (*MINIMAL, "--max-modl-len=5"),
            {},
            "unknown setting --max-modl-len, did you mean --max-model-len?",
        ),
        ((*MINIMAL, "--max-mod=5"), {}, "unknown setting --max-mod, did you mean --max-model-len?"),
        (
            MINIMAL,
            {"TANDEM_GENERATE_URLS": "http://a"},
            "unknown setting TANDEM_GENERATE_URLS, did you mean TANDEM_GENERATE_URL?",
        ),
        (
            MINIMAL,
            {"TANDEM_dtype": "half"},
            "unknown setting TANDEM_dtype, did you mean TANDEM_DTYPE?",
        ),
        ((*MINIMAL, "--zzz"), {}, "unknown setting --zzz; --help lists what there is"),
        ((*MINIMAL, "-tp", "2"), {}, "-tp belongs to the generate service"),
        ((*MINIMAL, "-O3"), {}, "-O3 belongs to the generate service"),
        (
            MINIMAL,
            {"TANDEM_QUANTIZATION": "fp8"},
            "TANDEM_QUANTIZATION belongs to the generate service",
        ),
        (
            (*MINIMAL, "--uds=/tmp/socket"),
            {},
            "--uds cannot be set: the service listens on --host and --port",
        ),
    ],
)
def test_what_is_wrong_without_asking_vllm(
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    environ: dict[str, str],
    expected: str,
) -> None:
    assert complaint(capsys, *argv, **environ) == expected


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (("stray",), {}, "unexpected 'stray': the model is given with --model"),
        (
            (),
            {"TANDEM_MAX_MODEL_LEN": "long"},
            "--max-model-len (TANDEM_MAX_MODEL_LEN): 'long' is not valid",
        ),
        (
            ("--limit-mm-per-prompt={",),
            {},
            "--limit-mm-per-prompt (TANDEM_LIMIT_MM_PER_PROMPT): { is not valid",
        ),
        (
            (),
            {"TANDEM_TRUST_REMOTE_CODE": "yes"},
            "--trust-remote-code (TANDEM_TRUST_REMOTE_CODE): 'yes' is not one of 1, true, 0, false",
        ),
        (
            (),
            {"TANDEM_API_KEY": "[oops"},
            "--api-key (TANDEM_API_KEY): '[oops' is not a JSON list",
        ),
        (
            ("--enable-auto-tool-choice",),
            {},
            "--enable-auto-tool-choice requires --tool-call-parser",
        ),
    ],
)
def test_what_vllm_finds_wrong(
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    environ: dict[str, str],
    expected: str,
) -> None:
    assert complaint(capsys, *MINIMAL, *argv, **environ) == expected


@pytest.mark.parametrize(
    "flags",
    [
        ("--enable-auto-tool-choice", "--tool-call-parser=hermse"),
        ("--reasoning-parser=qwen33",),
        ('--structured-outputs-config={"reasoning_parser": "qwen33"}',),
    ],
)
def test_an_unknown_parser_stops_the_start(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    wrong, _, known = complaint(capsys, *MINIMAL, *flags).partition(" is not one of ")
    assert wrong in (
        "--tool-call-parser (TANDEM_TOOL_CALL_PARSER): 'hermse'",
        "--reasoning-parser (TANDEM_REASONING_PARSER): 'qwen33'",
    )
    assert "deepseek_v3" in known.split(", ")


def test_parsers_come_from_plugins(tmp_path: Path) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    plugin = write_parser_plugin(tmp_path / "plugin_of_render.py", name="mine_on_render")
    parse(
        *MINIMAL,
        *(f"--tool-parser-plugin={plugin}", f"--reasoning-parser-plugin={plugin}"),
        *("--enable-auto-tool-choice", "--tool-call-parser=mine_on_render"),
        "--reasoning-parser=mine_on_render",
    )
    for manager in (ToolParserManager, ReasoningParserManager):
        assert "mine_on_render" in manager.list_registered()


def test_a_missing_chat_template_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing.jinja" in complaint(capsys, *MINIMAL, "--chat-template=missing.jinja")


def test_help_shows_our_settings_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--generate-url (TANDEM_GENERATE_URL), required" in text
    assert "--port (TANDEM_PORT), default 8000" in text
    assert text.index("--wire") < text.index("--tool-call-parser")
    assert "--tensor-parallel-size" not in text


def test_vllm_describes_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help=ModelConfig")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--max-model-len" in text
    # Not taken by this service.
    assert "--quantization" not in text


def test_a_typing_mistake_does_not_cost_an_import_of_vllm() -> None:
    check = (
        "import sys; from render_service.settings import parse_render_args as parse\n"
        "try: parse(['--modle=m'], {})\n"
        "except SystemExit: sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=REPOSITORY)
