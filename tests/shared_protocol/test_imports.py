"""The wire can be used without the engine, the web framework or the tensors' libraries."""

import subprocess
import sys
from pathlib import Path

import shared_protocol

FORBIDDEN = ("torch", "vllm", "fastapi", "starlette", "numpy", "transformers")

SCRIPT = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import shared_protocol
found = pkgutil.walk_packages(shared_protocol.__path__, "shared_protocol.")
names = [module.name for module in found]
for name in names:
    importlib.import_module(name)
print(*names)
print(*sorted(set(sys.argv[2:]) & sys.modules.keys()))
"""


def test_the_wire_imports_neither_engine_nor_framework() -> None:
    folder = Path(shared_protocol.__path__[0])
    # Isolated and fresh: neither this process's imports nor the caller's environment count.
    run = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, str(folder.parent), *FORBIDDEN],
        capture_output=True,
        text=True,
        check=True,
    )
    names, imported = run.stdout.splitlines()
    # The package's own file was imported before them.
    assert len(names.split()) == len(list(folder.rglob("*.py"))) - 1
    assert imported == ""
