"""Generates lines of Python for instructions that compute lane by lane.

The lines read operands in the kinds of the instruction's `Operation`, apply the modifiers of its
encoding (sign, absolute value, halves, SDWA, DPP, clamp, output modifier), and write the results to
the register files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mxc.simulator.code.instruction import EXEC, Instruction, Operand
from mxc.simulator.compute.dots import FLOAT_DOTS
from mxc.simulator.compute.integers import bit_operation
from mxc.simulator.compute.modes import (
    DENORM16,
    DENORM32,
    FP16_OVFL,
    ROUND16,
    ROUND32,
    clamp,
    flush_input,
    flush_output,
    omod,
)
from mxc.simulator.compute.operations import Operation, operation
from mxc.simulator.compute.packed import MIXED, PACKED16, PACKED32, packed_reads
from mxc.simulator.compute.rounding import DIRECTED, UNROUNDED, limited
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.saturation import SATURATING, saturating
from mxc.simulator.compute.signatures import VALU
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.operands import HALF_READERS, OperandExpressions, read_kind
from mxc.simulator.run.state import Waves

_FLOATS = "fhdb"


def _rounding(w: Waves, runs: tuple[Any, ...], *fields: int) -> Any:
    """Return the operation for the rounding mode in `fields` of MODE, which refuses its operands if
    the fields differ."""
    modes = {w.mode >> field & 3 for field in fields}
    return runs[modes.pop()] if len(modes) == 1 else _refuse


def _limit(w: Waves, result: Any, *operands: Any) -> Any:
    return limited(result, *operands) if w.mode & FP16_OVFL else result


def _refuse(*_: Any) -> Any:
    raise SimulationError("rounding other than to nearest even is not modelled")


class Lines(OperandExpressions):
    """Translates instructions to lines; `names`: the objects that the lines refer to."""

    def __init__(self, mode: int, *, changes_mode: bool = False) -> None:
        """mode: the initial MODE register. changes_mode: whether the kernel writes MODE."""
        super().__init__()
        self._mode = mode
        self._changes_mode = changes_mode
        self.names |= {"rounding": _rounding, "limit": _limit, "omod": omod, "clamp": clamp}
        self.names |= {"flush_input": flush_input, "flush_output": flush_output}

    def translate(self, i: Instruction) -> list[str] | None:
        """Return the lines of an instruction; None where no Operation describes it."""
        if i.name.startswith("v_bitop3"):
            kind = "u" if i.name.endswith("b32") else "w"
            run = bit_operation(i.has("bitop3"))
            return self._vector(i, operation(kind, kind * 3, run))
        if i.name in SALU:
            return self._scalar(i, SALU[i.name])
        if i.name in PACKED16:
            return self._packed16(i, PACKED16[i.name])
        if i.name in PACKED32:
            return self._packed32(i, PACKED32[i.name])
        if i.name in MIXED:
            return self._mixed(i, MIXED[i.name])
        if i.name.endswith(("_saveexec_b64", "_wrexec_b64")):
            return self._save_exec(i)
        return self._vector(i, VALU[i.name]) if i.name in VALU else None

    def _function(self, i: Instruction, entry: Operation) -> str:
        """Return an expression of the instruction's function for the rounding mode.

        Raises SimulationError for saturation or rounding that is not modelled.
        """
        kind = entry.outs[0]
        if i.has("clamp") and kind not in _FLOATS:
            if i.name not in SATURATING:
                raise SimulationError("saturation of this instruction is not modelled")
            return self.bind(saturating(i.name, kind))
        fields = {ROUND32} if kind == "f" else {ROUND16}
        if i.name == "v_cvt_f32_f64":
            # It is not documented which of these two rounding fields of MODE applies.
            fields = {ROUND32, ROUND16}
        if kind not in "fhd" or i.name in UNROUNDED:
            return self.bind(entry.run)
        make = DIRECTED.get(i.name)
        if self._changes_mode:
            others = (make(1), make(2), make(3)) if make else (_refuse,) * 3
            return f"rounding(w, {self.bind((entry.run, *others))}, {', '.join(map(str, fields))})"
        modes = {self._mode >> field & 3 for field in fields}
        if modes == {0}:
            return self.bind(entry.run)
        if make is None or len(modes) > 1:
            _refuse()
        return self.bind(make(modes.pop()) if make else _refuse)

    def _call(self, i: Instruction, entry: Operation, arguments: list[str]) -> list[str]:
        """Return lines that assign the result of the instruction's function to r."""
        call = f"r = {self._function(i, entry)}({', '.join(arguments)})"
        overflow = self._changes_mode or self._mode & FP16_OVFL
        if entry.outs[0] != "h" or not overflow or i.name in UNROUNDED:
            return [call]
        names = [f"x{n}" for n in range(len(arguments))]
        values = [f"{name} = {value}" for name, value in zip(names, arguments, strict=True)]
        together = ", ".join(names)
        return [*values, f"r = limit(w, {self._function(i, entry)}({together}), {together})"]

    def _source(self, i: Instruction, n: int, kind: str) -> str:
        """Return an expression of the n-th operand of a vector instruction, with its modifiers."""
        operand = i.operands[n]
        if n == 0 and i.has("dpp"):
            value = read_kind("moved", kind)
        elif i.has("sdwa") and n < 2:
            selector, signed = i.has(f"src{n}_sel") ^ 6, i.has(f"src{n}_sext")
            bits = f"select({self.bits(operand)}, {selector}, {signed})"
            value = bits if kind in "w" and selector != 6 else read_kind(bits, kind)
        else:
            halves = kind in HALF_READERS and i.encoding == "VOP3" and n < 3
            value = self.get(operand, kind, i.has("op_sel") >> n & 1 if halves else 0)
        absolute = i.has("abs") >> n & 1 or (n < 2 and i.has(f"src{n}_abs"))
        negative = i.has("neg") >> n & 1 or (n < 2 and i.has(f"src{n}_neg"))
        if kind not in _FLOATS:
            return _sign_bit(i, value, absolute, negative)
        value = self._input(value, kind)
        value = f"np.abs({value})" if absolute else value
        return f"(-{value})" if negative else value

    def _input(self, value: str, kind: str) -> str:
        """Flush a denormal operand where MODE says so."""
        shift = DENORM32 if kind == "f" else DENORM16
        if kind == "b" or (self._mode >> shift & 1 and not self._changes_mode):
            return value
        return f"flush_input(w, {value})"

    # Results

    def _result(self, i: Instruction, value: str, kind: str) -> str:
        """Apply denormal flushing, output modifier and clamp to a result; as uint32 or uint64."""
        if kind in "fhd":
            shift = DENORM32 if kind == "f" else DENORM16
            if self._changes_mode or not self._mode >> shift & 2:
                value = f"flush_output(w, {value})"
            if i.has("omod"):
                value = f"omod(w, {value}, {i.has('omod')})"
            if i.has("clamp"):
                value = f"clamp(w, {value})"
        if kind == "h":
            return f"from_half({value})"
        if kind == "w":
            return f"({value} & 0xFFFF)"
        if kind == "s":
            return f"({value}.view(u4) & 0xFFFF)"
        if kind in "fi":
            return f"{value}.view(u4)"
        return f"{value}.view(u8)" if kind in "Id" else value

    def _store(self, i: Instruction, target: Operand, value: str, kind: str) -> list[str]:
        """Return lines that write a result to vector registers, or a mask to scalar ones."""
        bank, index = target.bank, target.index
        place = f"{bank}[{index}]"
        if kind == "m":
            lines = [f"w.put_mask({index}, {value})"]
            if i.name.startswith("v_cmpx") and index != EXEC:
                lines.append(f"w.put_mask({EXEC}, w.mask({index}))")
            return lines
        bits = self._result(i, value, kind)
        if kind in "UId":
            return [
                f"t = {bits}",
                f"{place} = w.put({place}, low32(t))",
                f"{bank}[{index + 1}] = w.put({bank}[{index + 1}], high32(t))",
            ]
        if i.has("sdwa"):
            selector = i.has("dst_sel") ^ 6
            bits = f"insert({bits}, {place}, {selector}, {i.has('dst_unused')})"
        elif i.encoding == "VOP3" and i.has("op_sel") & 8 and kind in "whs":
            bits = f"(({place} & 0xFFFF) | ({bits} << 16))"
        if i.has("dpp"):
            return [f"{place} = w.put_where({place}, {bits}, keep)"]
        return [f"{place} = w.put({place}, {bits})"]

    # Families

    def _vector(self, i: Instruction, entry: Operation) -> list[str]:
        lines = []
        if i.has("dpp"):
            lines.append(f"moved, keep = dpp(w, {self.bits(i.operands[0])}, {self.bind(i)})")
        source = self._dot_source if i.encoding == "VOP3P" else self._source
        arguments = [source(i, n, kind) for n, kind in enumerate(entry.ins)]
        if entry.tied:
            arguments.append(self.get(i.results[0], entry.outs[0]))
        if len(entry.outs) == 1:
            lines += self._call(i, entry, arguments)
            return lines + self._store(i, i.results[0], "r", entry.outs)
        lines.append(f"r0, r1 = {self._function(i, entry)}({', '.join(arguments)})")
        for n, kind in enumerate(entry.outs):
            lines += self._store(i, i.results[n], f"r{n}", kind)
        return lines

    def _scalar(self, i: Instruction, entry: Operation) -> list[str]:
        operands = iter(i.operands)
        arguments = [
            "w.scc" if kind == "c" else self.get(next(operands), kind) for kind in entry.ins
        ]
        if entry.tied:
            arguments.append(self.get(i.results[0], entry.outs[0]))
        call = f"{self.bind(entry.run)}({', '.join(arguments)})"
        if entry.outs == "c":
            return [f"w.scc = w.put_scalar(w.scc, {call})"]
        lines = [f"r = {call}"]
        value = "r"
        if entry.outs.endswith("c"):
            lines = [f"r, c = {call}", "w.scc = w.put_scalar(w.scc, c)"]
        return lines + self._store_scalar(i.results[0], value, entry.outs[0])

    def _store_scalar(self, target: Operand, value: str, kind: str) -> list[str]:
        index = target.index
        if kind in "UI":
            value = value if kind == "U" else f"{value}.view(u8)"
            if index == EXEC:
                return [f"w.set_exec({value})"]
            return [
                f"s[{index}] = w.put_scalar(s[{index}], low32({value}))",
                f"s[{index + 1}] = w.put_scalar(s[{index + 1}], high32({value}))",
            ]
        value = value if kind == "u" else f"{value}.view(u4)"
        lines = [f"s[{index}] = w.put_scalar(s[{index}], {value})"]
        return [*lines, "w.refresh_exec()"] if index in (EXEC, EXEC + 1) else lines

    def _save_exec(self, i: Instruction) -> list[str]:
        """Set EXEC to source op EXEC; the result is the old EXEC (wrexec: the new); set SCC."""
        expression = _SAVE_EXEC.get(i.name.split("_")[1])
        kept = "e" if "saveexec" in i.name else "t"
        if expression is None:
            raise SimulationError("the instruction is not modelled")
        return [
            f"x = {self.get(i.operands[0], 'U')}",
            f"e = join(s[{EXEC}], s[{EXEC + 1}])",
            f"t = {expression}",
            *self._store_scalar(i.results[0], kept, "U"),
            "w.scc = w.put_scalar(w.scc, t != 0)",
            "w.set_exec(t)",
        ]

    def _packed16(self, i: Instruction, entry: Operation) -> list[str]:
        lines = []
        for half in (0, 1):
            arguments = []
            for n, upper in packed_reads(i, half)[: len(entry.ins)]:
                kind = entry.ins[n]
                value = self.packed_half(i.operands[n], kind, upper)
                arguments.append(self._half_sign(i, n, half, value, kind))
            if entry.tied:
                arguments.append(self.get(i.results[0], entry.outs, half))
            lines += self._call(i, entry, arguments)
            lines.append(f"r{half} = {self._result(i, 'r', entry.outs)}")
        target = f"v[{i.results[0].index}]"
        return [*lines, f"{target} = w.put({target}, r0 | (r1 << 16))"]

    def _packed32(self, i: Instruction, entry: Operation) -> list[str]:
        kind = entry.outs
        lines = []
        for half in (0, 1):
            arguments = []
            for n, upper in packed_reads(i, half):
                operand = i.operands[n]
                if not operand.is_register and upper:
                    raise SimulationError("the upper half of a packed constant is not modelled")
                chosen = replace(operand, index=operand.index + upper)
                value = self.get(chosen if operand.is_register else operand, kind)
                arguments.append(self._half_sign(i, n, half, value, kind))
            lines += self._call(i, entry, arguments)
            lines.append(f"r{half} = {self._result(i, 'r', kind)}")
        index = i.results[0].index
        return [*lines, *(f"v[{index + n}] = w.put(v[{index + n}], r{n})" for n in (0, 1))]

    def _half_sign(self, i: Instruction, n: int, half: int, value: str, kind: str) -> str:
        """Apply the sign modifier of one half to an operand of a packed instruction."""
        negative = i.has("neg_hi" if half else "neg") >> n & 1
        if kind not in _FLOATS:
            return _sign_bit(i, value, 0, negative)
        value = self._input(value, kind)
        return f"(-{value})" if negative else value

    def _dot_source(self, i: Instruction, n: int, kind: str) -> str:
        """Return an operand of a VOP3P instruction that is not packed.

        In dot products of floats each half has its own sign modifier.
        """
        if i.has("op_sel") or i.has("op_sel_hi"):
            # LLVM refuses op_sel for gfx940 and later (validateVOP3P in AMDGPUAsmParser.cpp).
            raise SimulationError("op_sel in a dot product is not modelled")
        value = self.get(i.operands[n], kind)
        low, high = i.has("neg") >> n & 1, i.has("neg_hi") >> n & 1
        if not low and not high:
            return value
        if i.name not in FLOAT_DOTS or (kind == "f" and high):
            raise SimulationError("the sign of an operand that is no float is not modelled")
        return f"(-{value})" if kind == "f" else f"({value} ^ {low << 15 | high << 31:#x})"

    def _mixed(self, i: Instruction, entry: Operation) -> list[str]:
        chosen, high = i.has("op_sel"), i.has("op_sel_hi") ^ 7
        arguments = []
        for n, operand in enumerate(i.operands):
            if high >> n & 1:
                value = f"{self._input(self.get(operand, 'h', chosen >> n & 1), 'h')}.astype(f4)"
            else:
                value = self._input(self.get(operand, "f"), "f")
            value = f"np.abs({value})" if i.has("neg_hi") >> n & 1 else value
            arguments.append(f"(-{value})" if i.has("neg") >> n & 1 else value)
        lines = self._call(i, entry, arguments)
        bits = self._result(i, "r", entry.outs)
        place = f"v[{i.results[0].index}]"
        if i.name == "v_mad_mixlo_f16":
            bits = f"(({place} & 0xFFFF0000) | {bits})"
        if i.name == "v_mad_mixhi_f16":
            bits = f"(({place} & 0xFFFF) | ({bits} << 16))"
        return [*lines, f"{place} = w.put({place}, {bits})"]


_SAVE_EXEC = {
    "and": "x & e",
    "or": "x | e",
    "xor": "x ^ e",
    "andn2": "x & ~e",
    "orn2": "x | ~e",
    "andn1": "~x & e",
    "orn1": "~x | e",
    "nand": "~(x & e)",
    "nor": "~(x | e)",
    "xnor": "~(x ^ e)",
}


def _sign_bit(i: Instruction, value: str, absolute: int, negative: int) -> str:
    """Apply sign modifiers to an operand that is not a float; only v_cndmask_b32 has them."""
    if not absolute and not negative:
        return value
    if i.name != "v_cndmask_b32":
        raise SimulationError("the sign of an operand that is no float is not modelled")
    value = f"({value} & 0x7FFFFFFF)" if absolute else value
    return f"({value} ^ 0x80000000)" if negative else value
