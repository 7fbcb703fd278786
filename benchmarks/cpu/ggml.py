"""Calls ggml, the tensor library of llama.cpp, through the shared objects in llama-cpp-python.

It declares only the functions for a product with repacked weights, and calls them as llama.cpp
does: weights in the buffer type CPU_REPACK, a graph of `ggml_mul_mat`, and the CPU backend with its
own threads. Nothing is compiled here.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PACKAGE = "llama-cpp-python"
MISSING = (
    f"{PACKAGE} is not installed: build it for this CPU with "
    "CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python '.[bench]'"
)

#: `enum ggml_type` (ggml.h); their names are compared when the library is opened.
F32, Q8_0, MXFP4 = 0, 8, 39
_NAMES = {F32: b"f32", Q8_0: b"q8_0", MXFP4: b"mxfp4"}
#: `enum ggml_backend_buffer_usage` (ggml-backend.h).
_USAGE_WEIGHTS = 1
#: Graph nodes and tensors for which a context has room beside those that are counted.
_SPARE = 8


class PeerMissing(Exception):
    """llama.cpp is not installed, or its version or build is unsuitable for the comparison."""


class _InitParams(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


_LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
#: Drops the library's log, which has every tensor that it repacks. Calls also return their errors.
_SILENT = _LOG(lambda level, text, data: None)

#: Function -> (result, arguments), as ggml.h, ggml-alloc.h, ggml-backend.h and ggml-cpu.h declare.
_BASE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_log_set": (None, (_LOG, c_void_p)),
    "ggml_init": (c_void_p, (_InitParams,)),
    "ggml_free": (None, (c_void_p,)),
    "ggml_type_name": (c_char_p, (c_int,)),
    "ggml_tensor_overhead": (c_size_t, ()),
    "ggml_graph_overhead_custom": (c_size_t, (c_size_t, c_bool)),
    "ggml_new_tensor_2d": (c_void_p, (c_void_p, c_int, c_int64, c_int64)),
    "ggml_mul_mat": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "ggml_new_graph_custom": (c_void_p, (c_void_p, c_size_t, c_bool)),
    "ggml_build_forward_expand": (None, (c_void_p, c_void_p)),
    "ggml_get_data": (c_void_p, (c_void_p,)),
    "ggml_nbytes": (c_size_t, (c_void_p,)),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, (c_void_p, c_void_p)),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, (c_void_p, c_void_p)),
    "ggml_backend_buffer_free": (None, (c_void_p,)),
    "ggml_backend_buffer_set_usage": (None, (c_void_p, c_int)),
    "ggml_backend_buft_name": (c_char_p, (c_void_p,)),
    "ggml_backend_tensor_alloc": (c_int, (c_void_p, c_void_p, c_void_p)),
    "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_graph_compute": (c_int, (c_void_p, c_void_p)),
    "ggml_backend_reg_dev_get": (c_void_p, (c_void_p, c_size_t)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_dev_supports_op": (c_bool, (c_void_p, c_void_p)),
    "ggml_backend_free": (None, (c_void_p,)),
}
_CPU: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_backend_cpu_init": (c_void_p, ()),
    "ggml_backend_cpu_set_n_threads": (None, (c_void_p, c_int)),
    "ggml_backend_cpu_reg": (c_void_p, ()),
    "ggml_cpu_has_avx512": (c_int, ()),
    "ggml_cpu_has_avx512_vnni": (c_int, ()),
    "ggml_cpu_has_avx512_bf16": (c_int, ()),
}
_EXTRA_BUFFERS = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)


def folder() -> Path:
    """Return the folder of the package. Raises PeerMissing if it is not installed."""
    # Found, not imported: the package loads libraries and modules that are not needed here.
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise PeerMissing(MISSING)
    return Path(spec.origin).parent


def version() -> str:
    """Return the version of the package. Raises PeerMissing if it is not installed."""
    folder()
    return importlib.metadata.version(PACKAGE)


class Ggml:
    """The library and one CPU backend of `threads` threads. The functions are attributes."""

    def __init__(self, threads: int) -> None:
        """Open the library. Raises PeerMissing if it is not there or lacks what is called."""
        libraries = folder() / "lib"
        try:
            self._base = ctypes.CDLL(str(libraries / "libggml-base.so"), ctypes.RTLD_GLOBAL)
            self._cpu = ctypes.CDLL(str(libraries / "libggml-cpu.so"))
            for library, table in ((self._base, _BASE), (self._cpu, _CPU)):
                for name, (result, arguments) in table.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise PeerMissing(f"{PACKAGE} {version()}: cannot be called ({error})") from error
        self.ggml_log_set(_SILENT, None)
        for kind, wanted in _NAMES.items():
            if self.ggml_type_name(kind) != wanted:
                raise PeerMissing(
                    f"{PACKAGE} {version()}: type {kind} is {self.ggml_type_name(kind)!r}, "
                    f"wanted {wanted!r}; use the version that the extra 'bench' pins"
                )
        self.backend = self.ggml_backend_cpu_init()
        self.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.device = self.ggml_backend_reg_dev_get(self.ggml_backend_cpu_reg(), 0)
        self.repack = self._repack()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _CPU and name not in _BASE:
            raise AttributeError(name)
        function: Callable[..., Any] = getattr(self._cpu if name in _CPU else self._base, name)
        return function

    @property
    def features(self) -> tuple[str, ...]:
        """The instruction sets that the library was built for, of those that its kernels use."""
        return tuple(
            name
            for name in ("avx512", "avx512_vnni", "avx512_bf16")
            if getattr(self, f"ggml_cpu_has_{name}")()
        )

    def context(self, tensors: int, graph: int = 0) -> int:
        """Return a context with room for headers of `tensors` tensors and `graph` graph nodes."""
        size = self.ggml_tensor_overhead() * tensors
        size += self.ggml_graph_overhead_custom(graph, False) if graph else 0
        found = self.ggml_init(_InitParams(size, None, True))
        assert found
        return int(found)

    def _repack(self) -> int:
        """Return the buffer type CPU_REPACK. Raises PeerMissing if the build has none."""
        address = self.ggml_backend_reg_get_proc_address(
            self.ggml_backend_cpu_reg(), b"ggml_backend_dev_get_extra_bufts"
        )
        found = _EXTRA_BUFFERS(address)(self.device) if address else None
        index = 0
        while found and found[index]:
            if self.ggml_backend_buft_name(found[index]) == b"CPU_REPACK":
                return int(found[index])
            index += 1
        raise PeerMissing(f"{PACKAGE} {version()}: built without CPU_REPACK; {MISSING}")


class Rotation:
    """Copies of one weight in memory. A call multiplies the same activations by each of them."""

    def __init__(self, library: Ggml, n: int, k: int, data: Array, copies: int) -> None:
        """Copy the weight. `data`: block_mxfp4 bytes [n, k/32, 17].

        Raises PeerMissing if the library has no kernel for repacked weights of this shape.
        """
        self._ggml, self._n, self._k = library, n, k
        self._contexts = [library.context(copies)]
        self._weights = [
            library.ggml_new_tensor_2d(self._contexts[0], MXFP4, k, n) for _ in range(copies)
        ]
        buffer = library.ggml_backend_alloc_ctx_tensors_from_buft(self._contexts[0], library.repack)
        assert buffer, "out of memory"
        self._buffers = [buffer]
        library.ggml_backend_buffer_set_usage(buffer, _USAGE_WEIGHTS)
        self._fill(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for buffer in self._buffers:
            self._ggml.ggml_backend_buffer_free(buffer)
        for context in self._contexts:
            self._ggml.ggml_free(context)

    def _fill(self, data: Array) -> None:
        source = np.ascontiguousarray(data)
        context = self._ggml.context(_SPARE)
        row = self._ggml.ggml_new_tensor_2d(context, F32, self._k, 1)
        node = self._ggml.ggml_mul_mat(context, self._weights[0], row)
        repacks = self._ggml.ggml_backend_dev_supports_op(self._ggml.device, node)
        self._ggml.ggml_free(context)
        if not repacks:
            raise PeerMissing(f"ggml has no repacked kernel for {self._n}x{self._k} on this CPU")
        for weight in self._weights:
            assert self._ggml.ggml_nbytes(weight) == source.nbytes
            self._ggml.ggml_backend_tensor_set(weight, source.ctypes.data, 0, source.nbytes)

    def multiply(self, x: Array, copies: int) -> tuple[Callable[[], None], Callable[[], Array]]:
        """Return (compute, read) for x float32 [m, k] times each of the first `copies` weights.

        compute() runs all products, which write to the same buffer, as the layers of a model do.
        read() returns the last result [m, n].
        """
        library, m = self._ggml, len(x)
        context = library.context(copies + _SPARE, graph=copies + _SPARE)
        given = library.ggml_new_tensor_2d(context, F32, self._k, m)
        result = library.ggml_new_tensor_2d(context, F32, self._n, m)
        buffer = library.ggml_backend_alloc_ctx_tensors(context, library.backend)
        assert buffer, "out of memory"
        self._contexts.append(context)
        self._buffers.append(buffer)
        source = np.ascontiguousarray(x, np.float32)
        library.ggml_backend_tensor_set(given, source.ctypes.data, 0, source.nbytes)
        graph = library.ggml_new_graph_custom(context, copies + _SPARE, False)
        for weight in self._chosen(copies):
            node = library.ggml_mul_mat(context, weight, given)
            library.ggml_backend_tensor_alloc(buffer, node, library.ggml_get_data(result))
            library.ggml_build_forward_expand(graph, node)

        def compute() -> None:
            if library.ggml_backend_graph_compute(library.backend, graph):
                raise RuntimeError("ggml: a graph was not computed")

        def read() -> Array:
            found = np.empty((m, self._n), np.float32)
            library.ggml_backend_tensor_get(result, found.ctypes.data, 0, found.nbytes)
            return found

        return compute, read

    def _chosen(self, copies: int) -> Sequence[int]:
        if not 0 < copies <= len(self._weights):
            raise ValueError(f"{copies} of {len(self._weights)} copies")
        return self._weights[:copies]
