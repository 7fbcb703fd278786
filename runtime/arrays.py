"""Conversion between numpy arrays of the caller and IREE device buffers, by MLIR element type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
from iree import runtime as rt
from numpy.typing import NDArray

from mxc.artifact.manifest import NIBBLES, TensorType
from mxc.errors import ArtifactError, RequestError

Array = NDArray[Any]

#: MLIR element type -> numpy dtype, for the types that may cross the boundary.
DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i1": np.dtype(np.bool_),
}

_ELEMENTS = {
    "f64": rt.HalElementType.FLOAT_64,
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f8E4M3FN": rt.HalElementType.FLOAT_8_E4M3_FN,
    "f8E4M3FNUZ": rt.HalElementType.FLOAT_8_E4M3_FNUZ,
    "f8E5M2": rt.HalElementType.FLOAT_8_E5M2,
    "f8E5M2FNUZ": rt.HalElementType.FLOAT_8_E5M2_FNUZ,
    "f8E8M0FNU": rt.HalElementType.FLOAT_8_E8M0_FNU,
    "i64": rt.HalElementType.INT_64,
    "i32": rt.HalElementType.INT_32,
    "i16": rt.HalElementType.INT_16,
    "i8": rt.HalElementType.INT_8,
    "i1": rt.HalElementType.BOOL_8,
}

#: Bytes that IREE aligns buffers to; memory that is less aligned would be copied.
_ALIGNMENT = 64


def dtype_of(name: str, place: str) -> np.dtype[Any]:
    """Return the numpy dtype of an MLIR element type.

    Raises ArtifactError, naming `place`, for a type that cannot be an argument or a result.
    """
    if name not in DTYPES:
        raise ArtifactError(
            f"{place}: element type {name!r} does not cross the boundary; "
            f"those that do: {', '.join(DTYPES)}"
        )
    return DTYPES[name]


def conform(value: object, wanted: TensorType, place: str) -> Array:
    """Return `value` as a contiguous array of exactly the wanted shape and dtype, never converted.

    Signedness is the one exception: uint8 is accepted for i8, and so on, because MLIR integers are
    signless and packed bytes are unsigned in numpy. Python numbers are accepted for rank 0. Raises
    RequestError, which names `place`, the wanted type and the given one.
    """
    dtype = dtype_of(wanted.dtype, place)
    if isinstance(value, bool | int | float) and not wanted.shape:
        try:
            array = np.asarray(value, dtype=dtype)
        except (OverflowError, ValueError) as error:  # ValueError: NaN has no integer
            raise RequestError(f"{place}: {value} does not fit {wanted.dtype}") from error
        if array.astype(object)[()] != value and dtype.kind in "iub":
            raise RequestError(f"{place}: wants {describe(wanted)}, got {value!r}")
    else:
        array = np.asarray(value)
    if array.dtype != dtype:
        integers = array.dtype.kind in "iu" and dtype.kind in "iu"
        if integers and array.itemsize == dtype.itemsize and array.dtype.isnative:
            array = array.view(dtype)
        else:
            raise RequestError(_mismatch(place, wanted, array))
    shape = wanted.shape
    if len(array.shape) != len(shape) or any(
        want not in (-1, got) for want, got in zip(shape, array.shape, strict=True)
    ):
        raise RequestError(_mismatch(place, wanted, array))
    return np.require(array, requirements="C")


def describe(tensor: TensorType) -> str:
    """Return a tensor type as messages print it: "f32 [4, ?]"."""
    return f"{tensor.dtype} [{', '.join('?' if n == -1 else str(n) for n in tensor.shape)}]"


def _mismatch(place: str, wanted: TensorType, got: Array) -> str:
    return f"{place}: wants {describe(wanted)}, got {got.dtype} {list(got.shape)}"


def to_device(device: Any, array: Array, dtype: str) -> Any:
    """Return a HalBufferView with a copy of `array`, whose elements have MLIR type `dtype`.

    The array is copied because a program may update its arguments in place.
    """
    if dtype in NIBBLES:
        codes = array.view(np.uint8)
        array, dtype = (codes[..., 0::2] | codes[..., 1::2] << 4).view(np.int8), "i8"
    return device.allocator.allocate_buffer_copy(
        rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, device, array, _ELEMENTS[dtype]
    )


def to_host(device: Any, view: Any, dtype: str) -> Array:
    """Return a copy of a device buffer of MLIR type `dtype`, as an array of the view's shape.

    The copy is needed because IREE returns a view of memory that is freed with the buffer.
    """
    found = np.array(window(device, view))
    if dtype in NIBBLES:
        codes = found.view(np.uint8)
        found = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    return found.view(DTYPES[dtype])


def window(device: Any, view: Any) -> Array:
    """Return a device buffer as an array, valid while the buffer lives; without a copy on CPUs."""
    found: Array = rt.DeviceArray(device, view).to_host()
    return found


def zeros(device: Any, tensor: TensorType, *, lazily: bool) -> tuple[Any, Array | None]:
    """Return a HalBufferView of zeros, and the numpy array of its memory, or None.

    lazily: for CPU devices; the memory is a numpy array of untouched pages of the operating system,
    so that a KV cache costs resident memory only for the positions that are used. The caller must
    keep that array as long as any buffer that a program derived from this one in place, because
    IREE keeps it alive only with the Python object of the first buffer.
    """
    size = int(np.prod(tensor.shape, dtype=np.int64)) * DTYPES[tensor.dtype].itemsize
    allocator = device.allocator
    memory = None
    if lazily:
        memory = np.zeros(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        buffer = allocator.import_host_allocation(
            memory[start : start + size],
            int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE),
            int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING),
        )
    else:
        buffer = allocator.allocate_buffer(rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, size)
        commands = rt.HalCommandBuffer(device)
        commands.fill(buffer, np.zeros(1, np.uint32 if size % 4 == 0 else np.uint8), end=True)
        _execute(device, lambda wait, done: device.queue_execute(commands, wait, done))
    return rt.HalBufferView(buffer, tensor.shape, _ELEMENTS[tensor.dtype]), memory


def copy_ranges(
    device: Any, source: Any, target: Any, ranges: Iterable[tuple[int, int, int]]
) -> None:
    """Copy byte ranges from one HalBufferView to another or the same, on the device, in order.

    `ranges`: (offset in the source, offset in the target, length). The source and the target of a
    range never overlap.
    """
    merged: list[list[int]] = []
    for start, end, length in ranges:
        # Within one buffer a source may adjoin a target, so that merged ranges would overlap.
        last = merged[-1] if merged and source is not target else None
        if last is not None and [last[0] + last[2], last[1] + last[2]] == [start, end]:
            last[2] += length
        else:
            merged.append([start, end, length])
    given, taken = source.get_buffer(), target.get_buffer()
    for start, end, length in merged:
        commands = rt.HalCommandBuffer(device)
        commands.copy(given, taken, start, end, length, end=True)
        _execute(device, lambda wait, done, now=commands: device.queue_execute(now, wait, done))


def _execute(device: Any, submit: Any) -> None:
    semaphore = device.create_semaphore(0)
    done = rt.HalFence.create_at(semaphore, 1)
    submit(rt.HalFence.create_at(semaphore, 0), done)
    done.wait()
