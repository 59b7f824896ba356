"""Tensors out of the bytes of a client: read as torch reads them, or refused."""

import io
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as saved_safetensors

from render_service.tensor_file import MAX_ARCHIVE_MEMBERS, read_tensor
from shared_protocol.errors import InvalidRequest
from tests.processes import REPOSITORY

LIMIT = 2**20


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(6, 8, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)


def tensors() -> Iterator[tuple[str, torch.Tensor]]:
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32"):
        yield name, rows(getattr(torch, name))
    yield "int64", torch.tensor([1, 4, 4])
    yield "bool", torch.tensor([True, False])
    yield "a number", torch.tensor(3.5)
    yield "nothing", torch.zeros(0, 8)
    yield "some rows", rows()[2:4]
    yield "some columns", rows()[:, 1:7:2]
    yield "transposed", rows().T
    yield "one row again and again", rows()[:1].expand(5, 8)
    yield "a parameter", torch.nn.Parameter(rows())
    yield "of a computation", rows().requires_grad_().detach()
    yield "a negated view", torch.complex(torch.zeros_like(rows()), rows()).conj().imag


TENSORS = dict(tensors())


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_what_torch_saves_is_read_as_torch_reads_it(tensor: torch.Tensor) -> None:
    data = saved(tensor)
    read = read_tensor(data, max_bytes=LIMIT)
    expected = torch.load(io.BytesIO(data), weights_only=True)
    assert read.dtype == expected.dtype
    assert torch.equal(read, expected.detach())
    assert not read.requires_grad
    assert read.is_contiguous()


def test_a_file_of_any_name(tmp_path: Any) -> None:
    torch.save(rows(), tmp_path / "mine.pt")
    assert torch.equal(read_tensor((tmp_path / "mine.pt").read_bytes(), max_bytes=LIMIT), rows())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_safetensors(name: str) -> None:
    tensor = rows(getattr(torch, name))
    read = read_tensor(saved_safetensors({"any name": tensor}), max_bytes=LIMIT)
    assert read.dtype == tensor.dtype
    assert torch.equal(read.float(), tensor.float())


@pytest.mark.parametrize("array", [rows().numpy(), rows().numpy().T, rows().numpy().astype(">f4")])
def test_arrays_of_numpy(array: Any) -> None:
    read = read_tensor(npy(array), max_bytes=LIMIT)
    assert torch.equal(read, torch.from_numpy(array.astype("<f4")))


class Subclass(torch.Tensor):
    pass


class Attack:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


def rezipped(data: bytes, change: Callable[[dict[str, bytes]], None], **options: Any) -> bytes:
    """The archive `data` with its members changed, not compressed unless `options` say so."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def with_program(program: bytes) -> bytes:
    return rezipped(saved(rows()), lambda members: members.update({"archive/data.pkl": program}))


def program(**changes: Any) -> bytes:
    """What torch writes for a tensor, with other numbers."""
    told = {"length": 48, "offset": 0, "size": (6, 8), "stride": (8, 1), "key": "0"} | changes

    class Reference:
        pass

    class Tensor:
        def __reduce__(self) -> Any:
            shape = (told["offset"], told["size"], told["stride"])
            return torch._utils._rebuild_tensor_v2, (Reference(), *shape, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, Reference):
                return ("storage", torch.FloatStorage, told["key"], "cpu", told["length"])
            return None

    file = io.BytesIO()
    Pickler(file, 2).dump(Tensor())
    return file.getvalue()


def test_the_programs_of_this_test_are_those_of_torch() -> None:
    assert torch.equal(read_tensor(with_program(program()), max_bytes=LIMIT), rows())


def many_members() -> bytes:
    more = {f"archive/{n}": b"" for n in range(MAX_ARCHIVE_MEMBERS)}
    return rezipped(saved(rows()), lambda members: members.update(more))


def twice_the_same() -> bytes:
    file = io.BytesIO(saved(rows()))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("archive/data/0", bytes(48 * 4))
    return file.getvalue()


def safetensors_file(header: bytes, values: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + values


def numpy_file(header: str, values: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values


WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "no bytes": (lambda: b"", "neither"),
    "three bytes": (lambda: b"\0\0\0", "neither"),
    "text": (lambda: b"not a tensor", "neither"),
    "the old form of torch": (
        lambda: saved(rows(), _use_new_zipfile_serialization=False), "neither",
    ),
    "another protocol": (lambda: saved(rows(), pickle_protocol=4), "protocol"),
    "a list": (lambda: saved([rows()]), "plain tensor"),
    "a dictionary": (lambda: saved({"a": rows()}), "plain tensor"),
    "a number": (lambda: saved(1), "broken|plain tensor"),
    "a string": (lambda: saved("a" * 5000), "more than one"),
    "sparse": (lambda: saved(rows().to_sparse()), "sparse"),
    "of another class": (lambda: saved(rows().as_subclass(Subclass)), "another class|plain"),
    "complex": (lambda: saved(torch.zeros(2, dtype=torch.complex64)), "complex"),
    "float8": (lambda: saved(torch.zeros(2, dtype=torch.float8_e4m3fn)), "safetensors"),
    "an attack": (lambda: with_program(pickle.dumps(Attack(), 2)), "plain tensor"),
    "an attack beside a tensor": (lambda: saved([rows(), Attack()]), "plain tensor"),
    "a memo of two thousand million": (
        lambda: with_program(b"\x80\x02K\x01r\xff\xff\xff\x7f."), "plain tensor",
    ),
    "a program without an end": (lambda: with_program(program()[:-1]), "broken|no end"),
    "no program": (lambda: with_program(b""), "broken|no end"),
    "a tuple in a tuple, many times": (
        lambda: with_program(b"\x80\x02)" + b"q\0h\0\x86" * 900 + b"."), "plain tensor",
    ),
    "beyond its storage": (lambda: with_program(program(offset=1)), "beyond"),
    "strides beyond its storage": (lambda: with_program(program(stride=(16, 1))), "beyond"),
    "an endless size": (lambda: with_program(program(size=(2**62, 8), stride=(0, 0))), "takes"),
    "sizes that overflow": (
        lambda: with_program(program(size=(2**32, 2**32), stride=(0, 0))), "takes",
    ),
    "a negative size": (lambda: with_program(program(size=(-6, -8))), "broken"),
    "a negative offset": (lambda: with_program(program(offset=-8)), "broken"),
    "a negative stride": (lambda: with_program(program(stride=(-8, 1))), "broken"),
    "a size that is no number": (lambda: with_program(program(size=("6", 8))), "broken"),
    "a truth for a size": (lambda: with_program(program(size=(True, 8))), "broken"),
    "fewer strides": (lambda: with_program(program(stride=(8,))), "broken"),
    "many dimensions": (
        lambda: with_program(program(size=(1,) * 9, stride=(1,) * 9)), "dimensions",
    ),
    "more than is stored": (lambda: with_program(program(length=49)), "more or fewer"),
    "less than is stored": (lambda: with_program(program(length=48 - 1, size=(5, 8))), "more or"),
    "another file": (lambda: with_program(program(key="../version")), "broken"),
    "compressed": (
        lambda: rezipped(saved(rows()), lambda _: None, compression=zipfile.ZIP_DEFLATED),
        "compressed",
    ),
    "a bomb": (
        lambda: rezipped(
            saved(rows()),
            lambda members: members.update({"archive/data/0": bytes(2**26)}),
            compression=zipfile.ZIP_DEFLATED,
        ),
        "compressed",
    ),
    "many files": (many_members, "more than 32 files"),
    "a file twice": (twice_the_same, "not one of"),
    "big-endian": (
        lambda: rezipped(saved(rows()), lambda m: m.update({"archive/byteorder": b"big"})),
        "little",
    ),
    "no program at all": (
        lambda: rezipped(saved(rows()), lambda members: members.__delitem__("archive/data.pkl")),
        "broken",
    ),
    "larger than allowed": (lambda: saved(torch.zeros(LIMIT // 4 + 1)), "takes"),
    "safetensors larger than allowed": (
        lambda: saved_safetensors({"a": torch.zeros(LIMIT // 4 + 1)}), "takes",
    ),
    "two safetensors": (lambda: saved_safetensors({"a": rows(), "b": rows()}), "2 tensors"),
    "no safetensors": (lambda: saved_safetensors({}), "0 tensors"),
    "a header without an end": (lambda: safetensors_file(b"{", length=2**63), "header"),
    "a header of nothing": (lambda: safetensors_file(b"{}"), "0 tensors"),
    "safetensors beyond the file": (
        lambda: safetensors_file(
            b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}', bytes(4)
        ),
        "broken",
    ),
    "an array of objects": (lambda: npy(np.array([{}]), allow_pickle=True), "numbers|broken"),
    "an array of words": (lambda: npy(np.array(["a"])), "broken"),
    "an array of pairs": (lambda: npy(np.zeros(2, dtype="i4,f4")), "numbers"),
    "an array of more than there is": (
        lambda: numpy_file(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1000, 1000000000)}"
        ),
        "takes",
    ),
    "an array of less than there is": (
        lambda: numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", bytes(8)),
        "more or fewer",
    ),
    "an array of a negative size": (
        lambda: numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", bytes(8)),
        "broken|more or fewer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), WRONG.values(), ids=WRONG)
def test_what_is_refused(make: Callable[[], bytes], reason: str, capsys: Any) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        read_tensor(make(), max_bytes=LIMIT)
    assert "/" not in refused.value.message
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "form", [saved, npy, lambda t: saved_safetensors({"a": t})], ids=["torch", "npy", "safetensors"]
)
def test_mutants_are_read_or_refused(form: Callable[[Any], bytes]) -> None:
    data, chance = form(rows()), random.Random(3)
    refused = 0
    for _ in range(3000):
        mutant = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            _MUTATIONS[chance.randrange(len(_MUTATIONS))](mutant, chance)
        try:
            read = read_tensor(bytes(mutant), max_bytes=LIMIT)
        except InvalidRequest:
            refused += 1
        else:
            assert read.numel() * read.element_size() <= LIMIT
    assert refused > 1000


def _flip(data: bytearray, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(data: bytearray, chance: random.Random) -> None:
    if data:
        start = chance.randrange(len(data))
        data[start : start + 4] = chance.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _remove(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    del data[start : start + chance.randrange(1, 20)]


def _double(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = data[start : start + chance.randrange(1, 40)]


_MUTATIONS = [*[_flip] * 4, *[_overwrite] * 3, _remove, _double, _cut]


MEMORY = """
import io, resource, struct, zipfile
from render_service.tensor_file import read_tensor
from shared_protocol.errors import InvalidRequest
from tests.render_service.test_tensor_file import WRONG, LIMIT
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
entry = b"PK\\x01\\x02" + bytes(42)
bombs = [b"PK\\x03\\x04" + entry * 700_000]
for name in ("an endless size", "a memo of two thousand million", "a header without an end",
             "an array of more than there is", "a tuple in a tuple, many times"):
    bombs.append(WRONG[name][0]())
for bomb in bombs:
    try:
        read_tensor(bomb, max_bytes=2**60)
    except (InvalidRequest, MemoryError) as error:
        assert not isinstance(error, MemoryError)
    else:
        raise AssertionError
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_no_memory_is_taken_by_the_word_of_a_file() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY],
        cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    grown_kib = int(run.stdout)
    assert grown_kib < 150 * 2**10, f"{grown_kib} KiB"
