"""The code of GPU kernels: one code object for each executable, generated or found in a cache.

IREE generates the code of a whole program at once. Here the kernels of a program are taken out of
it after their last form in MLIR, and LLVM generates their code in a module of their own. The
program gets finished code objects, which IREE calls external. So equal kernels of different
programs are generated once: most kernels of a model are those of its other context lengths, of
models of the same sizes, and of the same model after a change elsewhere in it.

LLVM writes the assembly of a kernel into its code object (artifact/code_objects/listing.py), from
the one generation whose code runs. The program gets the code object without this text.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from iree.compiler import ir

from mxc.artifact.code_objects.listing import without_listing
from mxc.artifact.versions import iree_version
from mxc.compiler import iree
from mxc.compiler.cache import CompileCache, sources
from mxc.compiler.report.assembly import KernelCode, kernels_of
from mxc.dialects.named_operations import symbol_of
from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.target import Target

_LISTED = '["target-features", "+dumpcode"]'
_PASSTHROUGH = "passthrough"
_ELF = b"\x7fELF"


class KernelObjects:
    """The kernels of the program that `compiler` has; `objects` are their code objects by the name
    of the executable, with assembly.

    `entries`: where code is looked for and kept; None to generate all of it.
    """

    def __init__(
        self, compiler: iree.Compiler, target: Target, entries: CompileCache | None
    ) -> None:
        """See the class."""
        self._compiler, self._entries = compiler, entries
        self._given = repr((iree_version(), iree.flags(target, None), iree.PROCESS_FLAGS))
        self._new: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}

    def take_known(self) -> None:
        """Replace the executables that are in the cache, before IREE's phase
        "executable-configurations".
        """
        if self._entries is None:
            return
        for executable in _executables(self._compiler.module):
            name, key = symbol_of(executable), self._key(executable)
            found = self._entries.read(key)
            if found is None:
                self._new[name] = key
                continue
            text, code = pickle.loads(found)
            self.objects[name] = zlib.decompress(code)
            with executable.context:
                stored = ir.Module.parse(text)
                known = _executables(stored)[0].clone(ip=ir.InsertionPoint(executable))
            executable.erase()
            self._put(known, self.objects[name])

    def generate(self) -> None:
        """Generate the code of the other executables, after IREE's phase "executable-targets".

        Raises CompileError if LLVM cannot.
        """
        left = [each for each in _executables(self._compiler.module) if _body(each) is not None]
        if not left:
            return
        module = self._apart(left)
        _list(module)
        self._compiler.run_apart(module, "executable-targets", "hal")
        found = {symbol_of(each): _code_object(each) for each in _executables(module)}
        kept = {}
        for executable in left:
            name = symbol_of(executable)
            self.objects[name] = found[name]
            body = _body(executable)
            assert body is not None
            body.erase()
            if name in self._new:
                text = _text(self._apart([executable]).operation)
                kept[self._new[name]] = pickle.dumps((text, zlib.compress(found[name], 1)))
            self._put(executable, found[name])
        self._keep(kept)

    def described(self, unit: ComputeUnit | None) -> dict[str, KernelCode]:
        """Return what the report says of each kernel, by its name; a hot loop is estimated once."""
        found: dict[str, KernelCode] = {}
        kept = {}
        for data in self.objects.values():
            given = f"{sources()} {unit}".encode()
            key = hashlib.sha256(hashlib.sha256(given).digest() + data).hexdigest()
            stored = None if self._entries is None else self._entries.read(key)
            each = kernels_of([data], unit) if stored is None else pickle.loads(stored)
            if stored is None:
                kept[key] = pickle.dumps(each)
            found |= each
        self._keep(kept)
        return found

    def _keep(self, bodies: dict[str, bytes]) -> None:
        # A folder that cannot be written is reported with the program (cache.py).
        with suppress(OSError):
            if self._entries is not None:
                self._entries.write(bodies)

    def _key(self, executable: ir.Operation) -> str:
        """Return the digest of all that the code depends on; names are in the code."""
        given = f"{self._given}\n{_text(executable)}"
        return hashlib.sha256(given.encode()).hexdigest()

    def _apart(self, executables: list[ir.Operation]) -> ir.Module:
        """Return a module of copies; they are public, because nothing there calls them."""
        with self._compiler.module.context, ir.Location.unknown():
            module = ir.Module.create()
            for each in executables:
                copy = each.clone()
                copy.attributes["sym_visibility"] = ir.StringAttr.get("public")
                module.body.append(copy)
        return module

    def _put(self, executable: ir.Operation, code: bytes) -> None:
        """Give an executable without a body its code.

        It has no locations: those of a kernel from the cache are of another program.
        """
        code = without_listing(code)
        unknown = ir.Location.unknown(executable.context)

        def visit(operation: ir.Operation) -> ir.WalkResult:
            operation.location = unknown
            return ir.WalkResult.ADVANCE

        executable.walk(visit)
        with executable.context:
            executable.attributes["sym_visibility"] = ir.StringAttr.get("private")
            _variant(executable).attributes["objects"] = ir.Attribute.parse(
                f'[#hal.executable.object<{{path = "{symbol_of(executable)}.hsaco", '
                f'data = dense<"0x{code.hex()}"> : vector<{len(code)}xi8>}}>]'
            )


def _text(op: ir.Operation) -> str:
    """Return the text of a verified operation without locations: verifying it again, and looking
    for aliases in all of the module, takes most of the time of printing a kernel."""
    return str(op.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True))


def _executables(module: ir.Module) -> list[ir.Operation]:
    found = [each.operation for each in module.body.operations]
    return [each for each in found if each.name == "hal.executable"]


def _inner(operation: ir.Operation) -> Iterator[ir.Operation]:
    for each in operation.regions[0].blocks[0].operations:
        yield each.operation


def _variant(executable: ir.Operation) -> ir.Operation:
    """Return the only variant: a program is for one kind of device."""
    (found,) = (each for each in _inner(executable) if each.name == "hal.executable.variant")
    return found


def _body(executable: ir.Operation) -> ir.Operation | None:
    """Return the module with the kernels; None if the code is finished."""
    variant = _variant(executable)
    return next((each for each in _inner(variant) if each.name == "builtin.module"), None)


def _list(module: ir.Module) -> None:
    """Have LLVM write the assembly of each function into the code object."""

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "llvm.func":
            attributes = operation.attributes
            given = list(attributes[_PASSTHROUGH]) if _PASSTHROUGH in attributes else []
            listed = ir.Attribute.parse(_LISTED, operation.context)
            attributes[_PASSTHROUGH] = ir.ArrayAttr.get([*given, listed], operation.context)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _code_object(executable: ir.Operation) -> bytes:
    """Return the code object in a binary, a FlatBuffer in which the size precedes it."""
    (binary,) = (each for each in _inner(executable) if each.name == "hal.executable.binary")
    data = np.asarray(ir.DenseIntElementsAttr(binary.attributes["data"])).tobytes()
    at = data.index(_ELF)
    (size,) = struct.unpack_from("<I", data, at - 4)
    return data[at : at + size]
