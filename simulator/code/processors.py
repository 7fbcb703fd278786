"""The supported processors: gfx950, and gfx942, which has a subset of its instructions.

One decoder reads both, because LLVM 22's disassembler reads each opcode alike for both, or only for
gfx950. On gfx942 an instruction is refused, when it is reached, if the processor lacks it (the list
below), or if it rounds to 8-bit floats: these are FNUZ formats there, and no document that we found
states how numbers that are too large are rounded. Reading and multiplying FNUZ numbers is
supported. Products of xf32, which only gfx942 has, are not modelled. Sources: LLVM, AMDGPU.td,
FeatureISAVersion9_4_2 and 9_5_0; AMD CDNA3 instruction set architecture, 7.3 (float formats).
"""

from __future__ import annotations

import re

from mxc.artifact.code_objects import elf
from mxc.errors import CodeObjectError
from mxc.targets.amd import GFX942, GFX950
from mxc.targets.gpu import Gpu

#: Processors by EF_AMDGPU_MACH, the low byte of e_flags.
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
#: Conversions from 8-bit floats and matrix products of them.
_READS_EIGHT_BITS = re.compile(r"v_cvt_(pk_)?f32_[fb][pf]8|v_mfma_f32_\d+x\d+x\d+(_[fb][pf]8){2}")
_KIND = re.compile(r"_([fb][pf]8)(?=_|$)")


def processor(data: bytes) -> Gpu:
    """Return the processor of a code object. Raises CodeObjectError for an unsupported one."""
    code = elf.machine(data)
    if code not in PROCESSORS:
        known = " or ".join(f"0x{code:x} ({each.name})" for code, each in PROCESSORS.items())
        raise CodeObjectError(
            f"not for gfx950 or gfx942: wanted a code object of processor {known}, found 0x{code:x}"
        )
    return PROCESSORS[code]


def meant(name: str, processor: Gpu) -> str:
    """Return the name of an instruction, with "fp8z" and "bf8z" where its 8-bit floats are FNUZ."""
    if processor is GFX950 or not _READS_EIGHT_BITS.fullmatch(name):
        return name
    return _KIND.sub(r"_\1z", name)


def refusal(name: str, processor: Gpu) -> str | None:
    """Return why a processor does not execute an instruction, or None if it does."""
    if processor is GFX950:
        return None
    if _NEW.match(name):
        return f"{processor.name} has no {name}: gfx950 does"
    if _EIGHT_BITS.search(name) and not _READS_EIGHT_BITS.fullmatch(name):
        return f"{name} is of FNUZ numbers on {processor.name}, and is not modelled with them"
    return None
