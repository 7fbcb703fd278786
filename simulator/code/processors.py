"""The processors whose code runs here: gfx950, and gfx942, which has less of the same.

LLVM 22's disassembler reads each of our opcodes alike for both, or for gfx950 alone; so one decoder
reads both. What a code object for gfx942 must not hold is refused when it is reached: what it lacks
(the lists below), and rounding to 8-bit floats, which are of another kind there (FNUZ; what becomes
of numbers that are too large no document that we found says). They are read and multiplied as what
they are. Products of xf32, which gfx950 has not, are not modelled. Sources: LLVM, AMDGPU.td,
FeatureISAVersion9_4_2 and 9_5_0; AMD CDNA3 instruction set architecture, 7.3 (the kinds of floats).
"""

from __future__ import annotations

import re

from mxc.artifact.code_objects import elf
from mxc.errors import CodeObjectError
from mxc.targets.amd import GFX942, GFX950
from mxc.targets.gpu import Gpu

#: By EF_AMDGPU_MACH, the low byte of e_flags.
PROCESSORS = {each.elf_machine: each for each in (GFX950, GFX942)}

_NEW = re.compile(
    r"""v_(cvt_(scalef32_|pk_b?f16_f32|sr_b?f16_f32|f32_bf16)|permlane\d\d_swap|bitop3_|ashr_pk_
    |prng_|(pk_)?(minimum|maximum)3_|dot2c?_f32_bf16
    |mfma_(scale_)?(f32_(16x16x32|32x32x16)_b?f16|i32_(16x16x64|32x32x32)_|\w+_f8f6f4)
    |smfmac_\w+_(16x16x128|32x32x64|16x16x64_b?f16|32x32x32_b?f16))
    |buffer_atomic_pk_add_bf16|(buffer|global)_load_lds_dwordx|ds_read_\w+_tr_""",
    re.VERBOSE,
)
_EIGHT_BITS = re.compile(r"_[fb][fp]8\b|_[fb][fp]8_")
#: Conversions from 8-bit floats and products of them.
_READS_EIGHT_BITS = re.compile(r"v_cvt_(pk_)?f32_[fb][pf]8|v_mfma_f32_\d+x\d+x\d+(_[fb][pf]8){2}")
_KIND = re.compile(r"_([fb][pf]8)(?=_|$)")


def processor(data: bytes) -> Gpu:
    """What a code object is for. Raises CodeObjectError for a file that does not run here."""
    code = elf.machine(data)
    if code not in PROCESSORS:
        known = " or ".join(f"0x{code:x} ({each.name})" for code, each in PROCESSORS.items())
        raise CodeObjectError(
            f"not for gfx950 or gfx942: wanted a code object of processor {known}, found 0x{code:x}"
        )
    return PROCESSORS[code]


def meant(name: str, processor: Gpu) -> str:
    """What an instruction is for a processor: with "fp8z" and "bf8z" where its 8-bit floats are
    FNUZ numbers."""
    if processor is GFX950 or not _READS_EIGHT_BITS.fullmatch(name):
        return name
    return _KIND.sub(r"_\1z", name)


def refusal(name: str, processor: Gpu) -> str | None:
    """Why a processor does not execute an instruction, or None if it does."""
    if processor is GFX950:
        return None
    if _NEW.match(name):
        return f"{processor.name} has no {name}: gfx950 does"
    if _EIGHT_BITS.search(name) and not _READS_EIGHT_BITS.fullmatch(name):
        return f"{name} is of FNUZ numbers on {processor.name}, and is not modelled with them"
    return None
