"""What can be compiled for: one frozen record a target, its source beside it.

Imports no MLIR and no IREE. A pass or a report asks the record ("is there a scaled matrix
instruction for this pair?") and never compares names. The CPU is a target too. An unknown name is
refused here because LLVM does not refuse it: for x86-64 it ends the process, for aarch64 it
silently compiles for the oldest CPU.
"""

from __future__ import annotations

import difflib
import platform
from dataclasses import dataclass, replace
from typing import Literal

from mxc.errors import TargetError
from mxc.targets.cpus import CPUS, KERNEL_FEATURES, Rates, rates_of

#: How an instruction multiplies, best first: with block scales, as a matrix, as a dot product of
#: narrow elements, or as ordinary multiply-add.
Kind = Literal["scaled matrix", "matrix", "dot product", "multiply-add"]
KINDS: tuple[Kind, ...] = ("scaled matrix", "matrix", "dot product", "multiply-add")

#: MLIR names of the MX element types; one f8f6f4 instruction takes any pair of them.
F8F6F4 = ("f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E4M3FN", "f8E5M2")


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """Instructions whose mnemonic starts with `prefix`; they need any one of the `features`."""

    prefix: str
    kind: Kind
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a record that could not be meant."""
        if not self.prefix or self.kind not in KINDS:
            raise ValueError(f"malformed {self}")


@dataclass(frozen=True, kw_only=True)
class ScaledMma:
    """One scaled matrix instruction: D[m, n] += sum over k of scaled A[m, k] and B[k, n], f32.

    Each `block` elements along k share an f8E8M0FNU scale. `lhs` and `rhs` are the element types
    (MLIR names) that each operand may have, independently of the other. `selected`: IREE chooses
    it by itself, where both sides are of one format and there are at least m rows.
    """

    instruction: str
    m: int
    n: int
    k: int
    block: int = 32
    lhs: tuple[str, ...] = F8F6F4
    rhs: tuple[str, ...] = F8F6F4
    selected: bool = False

    def __post_init__(self) -> None:
        """Refuse a shape that contradicts its blocks, its types or its mnemonic."""
        if min(self.m, self.n, self.k, self.block) < 1 or self.k % self.block:
            raise ValueError(f"k is not a positive number of blocks in {self}")
        if not set(self.lhs) | set(self.rhs) <= set(F8F6F4) or not self.lhs or not self.rhs:
            raise ValueError(f"unknown element type in {self}")
        if f"_{self.m}x{self.n}x{self.k}_" not in self.instruction:
            raise ValueError(f"the mnemonic names another shape in {self}")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a pass, the driver, the report and the runtime need to know of one machine.

    `device` is the IREE runtime driver; `chip` the CPU or GPU name for LLVM ("host": this
    machine's); `triple` what IREE must be told when the architecture is not the compiler's own.
    `features` are the LLVM features, of those that a kernel of ours looks at, that the chip has.
    `decoders` are mnemonic prefixes that turn packed MX elements into wider ones.
    `subgroup` is in lanes, `lds_bytes` the shared memory that one workgroup may hold.
    `extends_f8`: IREE can turn 8-bit elements into wider ones there. `unverified`: what of its code
    nothing has executed, a sentence for reports; empty where all has been.
    """

    name: str
    device: Literal["hip", "local-task"]
    architecture: Literal["amdgcn", "x86_64", "aarch64"]
    chip: str
    multipliers: tuple[Multiplier, ...]
    source: str
    triple: str | None = None
    features: tuple[str, ...] = ()
    decoders: tuple[str, ...] = ()
    scaled_mma: tuple[ScaledMma, ...] = ()
    subgroup: int = 1
    lds_bytes: int = 0
    extends_f8: bool = True
    unverified: str = ""

    def __post_init__(self) -> None:
        """Refuse a record whose fields contradict each other."""
        if self.is_gpu != (self.architecture == "amdgcn") or self.is_gpu != (self.lds_bytes > 0):
            raise ValueError(f"{self.name}: device, architecture and shared memory disagree")
        if self.subgroup & (self.subgroup - 1) or self.subgroup < 1:
            raise ValueError(f"{self.name}: a subgroup of {self.subgroup} is not a power of two")
        order = [KINDS.index(multiplier.kind) for multiplier in self.multipliers]
        if not order or order != sorted(order):
            raise ValueError(f"{self.name}: multipliers are listed best first")
        for mma in self.scaled_mma:
            if mma.m * mma.n % self.subgroup:
                raise ValueError(f"{self.name}: {mma.instruction} does not fill a subgroup")
            found = self.multiplier(mma.instruction)
            if found is None or found.kind != "scaled matrix":
                raise ValueError(f"{self.name}: no multiplier stands for {mma.instruction}")
        unknown = set(self.features) - set(KERNEL_FEATURES[self.architecture])
        if unknown:
            raise ValueError(f"{self.name}: features that no kernel looks at: {sorted(unknown)}")

    @property
    def is_gpu(self) -> bool:
        """Whether the code runs behind a GPU driver."""
        return self.device == "hip"

    @property
    def dot_products(self) -> tuple[Multiplier, ...]:
        """The dot product instructions that the chip has (none known for an unresolved host)."""
        return tuple(
            multiplier
            for multiplier in self.multipliers
            if multiplier.kind == "dot product" and self.has_any(multiplier.features)
        )

    @property
    def rates(self) -> Rates | None:
        """Measured products per clock of a core; None where nothing was measured."""
        return rates_of(self.chip, self.features) if self.architecture == "x86_64" else None

    @property
    def slow_bf16(self) -> str:
        """Why dot products of bf16, which the CPU has, are not used; empty where they are."""
        found = self.rates
        if found is None or found.bf16 > found.fma:
            return ""
        return (
            f"vdpbf16ps makes {found.bf16} products per clock of a core here, "
            f"multiply-add of f32 {found.fma}"
        )

    def has_any(self, features: tuple[str, ...]) -> bool:
        """Whether the chip has one of the LLVM features; asking for none is met by all."""
        return not features or not set(features).isdisjoint(self.features)

    def multiplier(self, mnemonic: str) -> Multiplier | None:
        """What kind of multiplication `mnemonic` is, or None where it is none."""
        matches = (m for m in self.multipliers if mnemonic.startswith(m.prefix))
        return max(matches, key=lambda m: len(m.prefix), default=None)

    def scaled_instructions(self, lhs: str, rhs: str, block: int) -> tuple[ScaledMma, ...]:
        """The scaled matrix instructions for these MLIR element types and this block size."""
        return tuple(
            mma
            for mma in self.scaled_mma
            if lhs in mma.lhs and rhs in mma.rhs and block == mma.block
        )

    def resolved(self, chip: str, features: tuple[str, ...]) -> Target:
        """The record of target "cpu" once LLVM has said what the host is; features it may ignore.

        chip: LLVM's CPU name; features: LLVM feature names without sign.
        """
        known = KERNEL_FEATURES[self.architecture]
        return replace(self, chip=chip, features=tuple(f for f in known if f in features))


_MFMA = (
    Multiplier(prefix="v_mfma_", kind="matrix"),
    Multiplier(prefix="v_smfmac_", kind="matrix"),
)
_WMMA = (Multiplier(prefix="v_wmma_", kind="matrix"), Multiplier(prefix="v_swmmac_", kind="matrix"))
_VALU = tuple(
    [Multiplier(prefix="v_dot", kind="dot product")]
    + [
        Multiplier(prefix=prefix, kind="multiply-add")
        for prefix in (
            "v_fma",
            "v_pk_fma",
            "v_dual_fma",
            "v_mad_f",
            "v_mad_mix",
            "v_mac_f",
            "v_pk_mul_f",
            "v_mul_f",
        )
    ]
)

GPUS = (
    Target(
        # AMD Instinct MI350: CDNA4 ISA guide, 7.1.5 (V_MFMA_SCALE_F32_*_F8F6F4; one scale per 32
        # along K) and 12 (160 KiB LDS). Shapes and LDS as IREE's KnownTargets.cpp has them.
        name="gfx950", device="hip", architecture="amdgcn", chip="gfx950", subgroup=64,
        lds_bytes=160 * 1024, decoders=("v_cvt_scalef32_",), multipliers=(
            Multiplier(prefix="v_mfma_scale_", kind="scaled matrix"),
            Multiplier(prefix="v_mfma_ld_scale_", kind="scaled matrix"),
            *_MFMA, *_VALU,
        ),
        scaled_mma=(
            ScaledMma(instruction="v_mfma_scale_f32_16x16x128_f8f6f4", m=16, n=16, k=128,
                      selected=True),
            ScaledMma(instruction="v_mfma_scale_f32_32x32x64_f8f6f4", m=32, n=32, k=64,
                      selected=True),
        ),
        source="AMD CDNA4 ISA guide; IREE KnownTargets.cpp (cdna4)",
    ),
    Target(
        # AMD Instinct MI300: CDNA3 ISA guide. fp8 is the FNUZ kind there, so no MX type is native.
        name="gfx942", device="hip", architecture="amdgcn", chip="gfx942", subgroup=64,
        lds_bytes=64 * 1024, extends_f8=False, multipliers=(*_MFMA, *_VALU),
        source="AMD CDNA3 ISA guide; IREE KnownTargets.cpp (cdna3)",
    ),
    Target(
        # LLVM VOP3PInstructions.td, V_WMMA_SCALE{,16}_F32_16X16X128_F8F6F4 and 32X16X128_F4 for
        # gfx1250: "scale" has a block of 32, "scale16" of 16. LDS as IREE's KnownTargets.cpp.
        name="gfx1250", device="hip", architecture="amdgcn", chip="gfx1250", subgroup=32,
        lds_bytes=320 * 1024, extends_f8=False, decoders=("v_cvt_scale_",), multipliers=(
            Multiplier(prefix="v_wmma_scale", kind="scaled matrix"),
            Multiplier(prefix="v_wmma_ld_scale", kind="scaled matrix"),
            *_WMMA, *_VALU,
        ),
        scaled_mma=(
            ScaledMma(instruction="v_wmma_scale_f32_16x16x128_f8f6f4", m=16, n=16, k=128),
            ScaledMma(instruction="v_wmma_scale_f32_32x16x128_f4", m=32, n=16, k=128,
                      lhs=("f4E2M1FN",), rhs=("f4E2M1FN",)),
            ScaledMma(instruction="v_wmma_scale16_f32_16x16x128_f8f6f4", m=16, n=16, k=128,
                      block=16),
            ScaledMma(instruction="v_wmma_scale16_f32_32x16x128_f4", m=32, n=16, k=128,
                      block=16, lhs=("f4E2M1FN",), rhs=("f4E2M1FN",)),
        ),
        source="LLVM AMDGPU VOP3PInstructions.td; IREE KnownTargets.cpp (gfx1250)",
        unverified="code for gfx1250 was never executed: its kernels were, as IR, with the layouts "
        "of matrix instructions that Triton has; no document of AMD's was found",
    ),
    Target(
        # Radeon RX 9070: RDNA4 ISA guide, 7.9 (V_WMMA_*, fp8 in the OCP kinds, no block scales).
        name="gfx1201", device="hip", architecture="amdgcn", chip="gfx1201", subgroup=32,
        lds_bytes=64 * 1024, extends_f8=False, multipliers=(*_WMMA, *_VALU),
        source="AMD RDNA4 ISA guide; IREE KnownTargets.cpp (rdna4)",
        unverified="code for gfx1201 was never executed: its kernels were, as IR, with the layouts "
        "of matrix instructions of AMD's document",
    ),
)  # fmt: skip

# Intel SDM vol. 2 and AMD64 APM vol. 4: mnemonics and the CPUID bit that each needs.
_X86 = (
    Multiplier(prefix="tdp", kind="matrix", features=("amx-int8",)),
    Multiplier(prefix="tdpbf16ps", kind="matrix", features=("amx-bf16",)),
    Multiplier(prefix="vdpbf16ps", kind="dot product", features=("avx512bf16",)),
    Multiplier(prefix="vpdpbusd", kind="dot product", features=("avx512vnni", "avxvnni")),
    Multiplier(prefix="vpmaddubsw", kind="dot product", features=("avx2",)),
    Multiplier(prefix="vpmaddwd", kind="dot product", features=("avx2",)),
    Multiplier(prefix="vfmadd", kind="multiply-add", features=("fma",)),
    Multiplier(prefix="vfnmadd", kind="multiply-add", features=("fma",)),
    Multiplier(prefix="vmul", kind="multiply-add"),
    Multiplier(prefix="mulp", kind="multiply-add"),
    Multiplier(prefix="muls", kind="multiply-add"),
)
# Arm ARM (DDI 0487), C7 and C8: mnemonics and the FEAT_ that each needs, in LLVM's spelling.
_AARCH64 = (
    Multiplier(prefix="bfmmla", kind="matrix", features=("bf16",)),
    Multiplier(prefix="smmla", kind="matrix", features=("i8mm",)),
    Multiplier(prefix="usmmla", kind="matrix", features=("i8mm",)),
    Multiplier(prefix="bfdot", kind="dot product", features=("bf16",)),
    Multiplier(prefix="sdot", kind="dot product", features=("dotprod",)),
    Multiplier(prefix="udot", kind="dot product", features=("dotprod",)),
    Multiplier(prefix="usdot", kind="dot product", features=("i8mm",)),
    Multiplier(prefix="fmla", kind="multiply-add"),
    Multiplier(prefix="fmad", kind="multiply-add"),
    Multiplier(prefix="fmul", kind="multiply-add"),
)
# Byte and word permutes are table look-ups: how a kernel without an MX instruction decodes.
_X86_DECODERS = ("vpermw", "vpermps", "vpermb", "vpermi2", "vpermt2", "vpshufb", "pshufb")
_AARCH64_DECODERS = ("tbl", "tbx")


def _cpu(
    architecture: Literal["x86_64", "aarch64"], chip: str, features: tuple[str, ...]
) -> Target:
    host = chip == "host"
    x86 = architecture == "x86_64"
    return Target(
        name="cpu" if host else f"cpu:{chip}",
        device="local-task",
        architecture=architecture,
        chip=chip,
        triple=None if host else f"{architecture}-unknown-linux-gnu",
        features=features,
        multipliers=_X86 if x86 else _AARCH64,
        decoders=_X86_DECODERS if x86 else _AARCH64_DECODERS,
        source="LLVM 24 CPU tables; Intel SDM, AMD64 APM" if x86 else "LLVM 24 CPU tables; Arm ARM",
    )


def _host() -> Target:
    machine = platform.machine().lower()
    return _cpu("aarch64" if machine in ("aarch64", "arm64") else "x86_64", "host", ())


#: Every target by name.
TARGETS: dict[str, Target] = {
    record.name: record
    for record in (
        _host(),
        *GPUS,
        *(_cpu(arch, chip, has) for arch, cpus in CPUS.items() for chip, has in cpus.items()),
    )
}


def target(name: str) -> Target:
    """The record called `name`; TargetError lists the known names and the nearest one."""
    if name in TARGETS:
        return TARGETS[name]
    near = difflib.get_close_matches(name, TARGETS, n=1, cutoff=0.6)
    wanted = f" (did you mean {near[0]!r}?)" if near else ""
    raise TargetError(f"unknown target {name!r}{wanted}; known targets: {', '.join(TARGETS)}")
