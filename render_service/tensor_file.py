"""Reading one tensor out of the bytes of a client: as safetensors, of ``torch.save``, of NumPy.

Nothing is unpickled, and no memory is taken by the word of a header: the form is checked first.
"""

import io
import math
import struct
import zipfile
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load as load_safetensors

from render_service.pickled_tensor import MAX_PROGRAM_BYTES, StoredTensor, stored_tensor
from shared_protocol.errors import InvalidRequest

MAX_ARCHIVE_MEMBERS: Final = 32
"""``torch.save`` writes seven for a tensor."""

MAX_HEADER_BYTES: Final = 64 * 2**10
"""Of safetensors, for one tensor and whatever metadata are put beside it."""

_MAX_NUMPY_HEADER_CHARACTERS: Final = 1000
_NUMPY_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = b"PK\x03\x04"
_ZIP_ENTRY: Final = b"PK\x01\x02"
_ENCRYPTED: Final = 0x1
_HEADER_LENGTH: Final = struct.Struct("<Q")


def read_tensor(data: bytes, *, max_bytes: int) -> torch.Tensor:
    """Return the one dense tensor that `data` holds.

    Args:
        max_bytes: most that its values may take.

    Raises:
        InvalidRequest: saying what is wrong with the file, as the end of a sentence.
    """
    try:
        return _reader(data)(data, max_bytes)
    except (InvalidRequest, MemoryError):
        raise
    except Exception as error:  # Each format's library has errors of many kinds for broken files.
        raise InvalidRequest("it is broken or cut short") from error


def _reader(data: bytes) -> Callable[[bytes, int], torch.Tensor]:
    if data.startswith(_ZIP_MAGIC):
        return _read_archive
    if data.startswith(_NUMPY_MAGIC):
        return _read_numpy
    if data[_HEADER_LENGTH.size : _HEADER_LENGTH.size + 1] == b"{":
        return _read_safetensors
    raise InvalidRequest(
        "it is neither a safetensors file nor one that `torch.save` writes by default"
    )


def _read_safetensors(data: bytes, max_bytes: int) -> torch.Tensor:
    (length,) = _HEADER_LENGTH.unpack_from(data)
    if length > MAX_HEADER_BYTES:
        raise InvalidRequest(f"its header has more than {MAX_HEADER_BYTES} bytes")
    # What safetensors takes is the size of the data: it lets no values overlap.
    _check_size(len(data), max_bytes)
    tensors: dict[str, torch.Tensor] = load_safetensors(data)
    if len(tensors) != 1:
        raise InvalidRequest(f"it holds {len(tensors)} tensors in place of one")
    (tensor,) = tensors.values()
    return tensor


def _read_archive(data: bytes, max_bytes: int) -> torch.Tensor:
    # zipfile makes an object of each entry before anybody can ask how many there are.
    if data.count(_ZIP_ENTRY) > MAX_ARCHIVE_MEMBERS:
        raise InvalidRequest(f"its archive has more than {MAX_ARCHIVE_MEMBERS} files")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = _members(archive)
        if members["data.pkl"].file_size > MAX_PROGRAM_BYTES:
            raise InvalidRequest("it describes more than one plain tensor")
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise InvalidRequest("its values are not little-endian")
        stored = stored_tensor(archive.read(members["data.pkl"]))
        dtype: torch.dtype = getattr(torch, stored.dtype)
        _check_size(math.prod(stored.size) * dtype.itemsize, max_bytes)
        member = members[f"data/{stored.storage}"]
        if member.file_size != stored.storage_length * dtype.itemsize:
            raise InvalidRequest("its values are more or fewer than it says")
        values = archive.read(member)
    return _view(values, dtype, stored)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by their names without the folder that they are all in."""
    members: dict[str, zipfile.ZipInfo] = {}
    folder, _, _ = archive.infolist()[0].filename.partition("/")
    for member in archive.infolist():
        # ZIP64 or not, torch stores files as they are.
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise InvalidRequest("its archive is compressed")
        name = member.filename.removeprefix(f"{folder}/")
        if member.flag_bits & _ENCRYPTED or name in members:
            raise InvalidRequest("its archive is not one of `torch.save`")
        members[name] = member
    return members


def _view(values: bytes, dtype: torch.dtype, stored: StoredTensor) -> torch.Tensor:
    if not math.prod(stored.size):
        return torch.empty(stored.size, dtype=dtype)
    # A byte that is no boolean would be one all the same.
    raw = torch.uint8 if dtype == torch.bool else dtype
    tensor = torch.frombuffer(bytearray(values), dtype=raw)
    tensor = tensor.as_strided(stored.size, stored.stride, stored.offset).to(dtype).contiguous()
    return -tensor if stored.negated else tensor


def _read_numpy(data: bytes, max_bytes: int) -> torch.Tensor:
    file = io.BytesIO(data)
    read_header: dict[Any, Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    shape, by_columns, dtype = read_header[version](
        file, max_header_size=_MAX_NUMPY_HEADER_CHARACTERS
    )
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        raise InvalidRequest("it holds something else than numbers")
    _check_size(math.prod(shape) * dtype.itemsize, max_bytes)
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise InvalidRequest("its values are more or fewer than it says")
    values = np.frombuffer(data, dtype, offset=file.tell())
    array = values.reshape(shape, order="F" if by_columns else "C")
    return torch.from_numpy(np.array(array, dtype.newbyteorder("="), order="C"))


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise InvalidRequest(f"its tensor takes {size} bytes, more than the {max_bytes} allowed")
