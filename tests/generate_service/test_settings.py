"""The generate service's command line and environment."""

import warnings
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import pytest

from generate_service.settings import COMMAND_LINE, GenerateSettings, parse_generate_args
from tests.parser_plugin import write_parser_plugin

with warnings.catch_warnings():
    # torch warns of its own functions while vLLM is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    COMMAND_LINE.load_vllm()


def parse(*argv: str, **environ: str) -> tuple[GenerateSettings, Namespace]:
    return parse_generate_args(argv, environ)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str, **environ: str) -> str:
    """What is printed when the service does not start."""
    with pytest.raises(SystemExit) as stop:
        parse(*argv, **environ)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("python -m generate_service: error: ").strip()


def test_defaults() -> None:
    settings, args = parse("--model", "m")
    assert asdict(settings) == {
        "host": "0.0.0.0",
        "port": 8100,
        "max_body_bytes": 2**30,
        "max_bodies_bytes": 2**33,
        "generate_api_key": "",
        "generate_api_key_file": "",
        "tls_cert_file": "",
        "tls_key_file": "",
        "tls_client_ca_file": "",
        "item_checks": "on",
        "item_hashes": "content",
        "held_items_bytes": 2**31,
        "zero_kv_blocks": "on",
        "on_engine_death": "exit",
        "shutdown_grace_s": 25.0,
        "max_concurrent_requests": 2048,
        "request_read_timeout_s": 60.0,
        "answer_stall_timeout_s": 30.0,
        "retry_after_s": 1,
    }
    assert (args.model, args.host, args.port) == ("m", "0.0.0.0", 8100)


def test_the_namespace_makes_engine_arguments() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    _, args = parse(
        *("--model=m", "--port=8101", "-tp", "2", "-O1", "--device-memory-utilization=0.3"),
        "--kv-transfer-config.kv_connector=Example",
        "--kv-transfer-config.kv_role=kv_both",
        TANDEM_ENFORCE_EAGER="true",
        TANDEM_DISABLE_LOG_STATS="1",
        TANDEM_TENSOR_PARALLEL_SIZE="4",
        TANDEM_CUDAGRAPH_CAPTURE_SIZES="1 2 4",
        TANDEM_GPU_MEMORY_UTILIZATION="0.8",
        TANDEM_STRUCTURED_OUTPUTS_CONFIG='{"backend": "xgrammar"}',
    )
    engine_args = AsyncEngineArgs.from_cli_args(args)
    assert engine_args.tensor_parallel_size == 2
    assert args.optimization_level == "1"
    assert engine_args.gpu_memory_utilization == 0.3
    assert engine_args.enforce_eager is True
    assert engine_args.disable_log_stats is True
    assert engine_args.cudagraph_capture_sizes == [1, 2, 4]
    assert engine_args.kv_transfer_config.kv_connector == "Example"
    assert engine_args.structured_outputs_config.backend == "xgrammar"
    assert args.port == 8101


def test_a_switch_that_can_only_be_turned_on_stays_off() -> None:
    _, args = parse("--model=m", TANDEM_DISABLE_LOG_STATS="0", TANDEM_ENFORCE_EAGER="0")
    assert args.disable_log_stats is False
    assert args.enforce_eager is False


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        ((), {}, "--model (TANDEM_MODEL) is required"),
        (
            ("--model=m", "--retry-after-s=1.5"),
            {},
            "--retry-after-s (TANDEM_RETRY_AFTER_S): '1.5' is not a whole number above 0",
        ),
        (
            ("--model=m", "--tool-call-parser=hermes"),
            {},
            "--tool-call-parser belongs to the render service",
        ),
        (
            ("--model=m",),
            {"TANDEM_GENERATE_URL": "http://a"},
            "unknown setting TANDEM_GENERATE_URL, did you mean TANDEM_GENERATE_API_KEY?",
        ),
        (
            ("--model=m", "--headless"),
            {},
            "--headless cannot be set: each replica is a service of its own, start more of them",
        ),
        (
            ("--model=m", "--enforce-eagr"),
            {},
            "unknown setting --enforce-eagr, did you mean --enforce-eager?",
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


def test_what_vllm_finds_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "--model=m", TANDEM_DTYPE="int3").startswith(
        "--dtype (TANDEM_DTYPE): invalid choice: 'int3'"
    )


def test_an_unknown_reasoning_parser_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "--model=m", "--reasoning-parser=qwen33").startswith(
        "--reasoning-parser (TANDEM_REASONING_PARSER): 'qwen33' is not one of "
    )


def test_a_reasoning_parser_comes_from_a_plugin(tmp_path: Path) -> None:
    from vllm.reasoning import ReasoningParserManager

    plugin = write_parser_plugin(tmp_path / "plugin_of_generate.py", name="mine_on_generate")
    parse(
        *("--model=m", f"--reasoning-parser-plugin={plugin}"),
        "--reasoning-parser=mine_on_generate",
    )
    assert "mine_on_generate" in ReasoningParserManager.list_registered()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("-h")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--retry-after-s (TANDEM_RETRY_AFTER_S), default 1" in text
    assert "--tensor-parallel-size" in text
    assert "--tool-call-parser" not in text
