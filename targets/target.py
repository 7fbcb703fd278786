"""Compilation targets: one frozen record per target, with its source.

Imports no MLIR and no IREE. A pass or a report asks the record ("is there a scaled matrix
instruction for this pair?") and never compares names. The CPU is a target too. An unknown name is
refused here because LLVM does not refuse it: for x86-64 LLVM ends the process, for aarch64 it
silently compiles for the oldest CPU.
"""

from __future__ import annotations

import difflib
import platform
from dataclasses import dataclass, replace
from typing import Literal

from mxc.errors import TargetError
from mxc.targets.amd import GPUS
from mxc.targets.cpus import CPUS, KERNEL_FEATURES, CpuRates, rates_of
from mxc.targets.gpu import Gpu, GroupRows
from mxc.targets.matrix_unit import MatrixInstruction

#: The LLVM chip of the target "cpu": the machine that runs mxc.
HOST = "host"

#: How an instruction multiplies, best first: with block scales, as a matrix, as a dot product of
#: narrow elements, or as ordinary multiply-add.
Kind = Literal["scaled matrix", "matrix", "dot product", "multiply-add"]
KINDS: tuple[Kind, ...] = ("scaled matrix", "matrix", "dot product", "multiply-add")


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The kind of multiplication of instructions whose mnemonic starts with `prefix`."""

    prefix: str
    kind: Kind

    def __post_init__(self) -> None:
        """Raise ValueError for an empty prefix or an unknown kind."""
        if not self.prefix or self.kind not in KINDS:
            raise ValueError(f"malformed {self}")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The facts about one machine that passes, the driver, the report and the runtime need.

    `device` is the IREE runtime driver. `chip` is the CPU or GPU name for LLVM ("host": this
    machine). `triple` is passed to IREE when the architecture is not the compiler's own. `features`
    are the LLVM features of the chip, of those that kernels of this repository use. `decoders` are
    prefixes of mnemonics that convert packed MX elements to wider ones. `gpu`: the record of a GPU.
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
    gpu: Gpu | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a record whose fields contradict each other."""
        if self.is_gpu != (self.architecture == "amdgcn") or self.is_gpu != (self.gpu is not None):
            raise ValueError(f"{self.name}: device, architecture and the record of a GPU disagree")
        order = [KINDS.index(multiplier.kind) for multiplier in self.multipliers]
        if not order or order != sorted(order):
            raise ValueError(f"{self.name}: multipliers are listed best first")
        for each in self.scaled_instructions:
            found = self.multiplier(each.mnemonic)
            if found is None or found.kind != "scaled matrix":
                raise ValueError(f"{self.name}: no multiplier stands for {each.mnemonic}")
        unknown = set(self.features) - set(KERNEL_FEATURES[self.architecture])
        if unknown:
            raise ValueError(f"{self.name}: features that no kernel looks at: {sorted(unknown)}")

    @property
    def scaled_instructions(self) -> tuple[MatrixInstruction, ...]:
        """The matrix instructions with block scales."""
        return self.gpu.matrix.scaled if self.gpu is not None else ()

    @property
    def group_rows(self) -> GroupRows:
        """Rows of groups of one expert on the GPU; () for a CPU, which has no groups."""
        return () if self.gpu is None else self.gpu.group_rows

    @property
    def is_gpu(self) -> bool:
        """Whether the code runs on a GPU."""
        return self.device == "hip"

    @property
    def rates(self) -> CpuRates | None:
        """Measured products per clock of a core; None without a measurement."""
        return rates_of(self.chip, self.features) if self.architecture == "x86_64" else None

    @property
    def slow_bf16(self) -> str:
        """Why bf16 dot products, which the CPU has, are not used; empty where they are used."""
        found = self.rates
        if found is None or found.bf16 > found.fma:
            return ""
        return (
            f"vdpbf16ps makes {found.bf16} products per clock of a core here, "
            f"multiply-add of f32 {found.fma}"
        )

    def has_any(self, features: tuple[str, ...]) -> bool:
        """Whether the chip has at least one of these LLVM features; True for an empty tuple."""
        return not features or not set(features).isdisjoint(self.features)

    def multiplier(self, mnemonic: str) -> Multiplier | None:
        """The kind of multiplication of a mnemonic, by its longest matching prefix; else None."""
        matches = (m for m in self.multipliers if mnemonic.startswith(m.prefix))
        return max(matches, key=lambda m: len(m.prefix), default=None)

    def scaled_for(self, lhs: str, rhs: str, block: int) -> tuple[MatrixInstruction, ...]:
        """The scaled matrix instructions for these MLIR element types and this block size."""
        return tuple(
            each
            for each in self.scaled_instructions
            if lhs in each.lhs and rhs in each.rhs and block == each.block
        )

    def resolved(self, chip: str, features: tuple[str, ...]) -> Target:
        """The record of target "cpu" with the host's chip and features; features no kernel uses are
        dropped.

        chip: LLVM's CPU name; features: LLVM feature names without sign.
        """
        known = KERNEL_FEATURES[self.architecture]
        return replace(self, chip=chip, features=tuple(f for f in known if f in features))


#: Prefixes of the mnemonics of matrix instructions, by family: with block scales, and without.
_SCALED = {
    "mfma": ("v_mfma_scale_", "v_mfma_ld_scale_"),
    "wmma": ("v_wmma_scale", "v_wmma_ld_scale"),
}
_MATRIX = {"mfma": ("v_mfma_", "v_smfmac_"), "wmma": ("v_wmma_", "v_swmmac_")}
_VALU = (
    "v_fma", "v_pk_fma", "v_dual_fma", "v_mad_f", "v_mad_mix", "v_mac_f", "v_pk_mul_f", "v_mul_f",
)  # fmt: skip


def _gpu(gpu: Gpu) -> Target:
    family = gpu.matrix.family
    return Target(
        name=gpu.name,
        device="hip",
        architecture="amdgcn",
        chip=gpu.name,
        decoders=gpu.decoders,
        gpu=gpu,
        multipliers=(
            *_all(_SCALED[family] if gpu.matrix.scaled else (), "scaled matrix"),
            *_all(_MATRIX[family], "matrix"),
            *_all(("v_dot",), "dot product"),
            *_all(_VALU, "multiply-add"),
        ),
        source=gpu.source,
    )


def _all(prefixes: tuple[str, ...], kind: Kind) -> tuple[Multiplier, ...]:
    return tuple(Multiplier(prefix=prefix, kind=kind) for prefix in prefixes)


# Intel SDM vol. 2 and AMD64 APM vol. 4.
_X86 = (
    *_all(("tdp",), "matrix"),
    *_all(("vdpbf16ps", "vpdpbusd", "vpmaddubsw", "vpmaddwd"), "dot product"),
    *_all(("vfmadd", "vfnmadd", "vmul", "mulp", "muls"), "multiply-add"),
)
# Arm ARM (DDI 0487), C7 and C8.
_AARCH64 = (
    *_all(("bfmmla", "smmla", "usmmla"), "matrix"),
    *_all(("bfdot", "sdot", "udot", "usdot"), "dot product"),
    *_all(("fmla", "fmad", "fmul"), "multiply-add"),
)
# Byte and word permutes are table lookups, with which kernels decode without an MX instruction.
_X86_DECODERS = ("vpermw", "vpermps", "vpermb", "vpermi2", "vpermt2", "vpshufb", "pshufb")
_AARCH64_DECODERS = ("tbl", "tbx")


def _cpu(
    architecture: Literal["x86_64", "aarch64"], chip: str, features: tuple[str, ...]
) -> Target:
    host = chip == HOST
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
    return _cpu("aarch64" if machine in ("aarch64", "arm64") else "x86_64", HOST, ())


#: Every target by name.
TARGETS: dict[str, Target] = {
    record.name: record
    for record in (
        _host(),
        *map(_gpu, GPUS),
        *(_cpu(arch, chip, has) for arch, cpus in CPUS.items() for chip, has in cpus.items()),
    )
}


def target(name: str) -> Target:
    """The record called `name`. Raises TargetError with the known names and the nearest one."""
    if name in TARGETS:
        return TARGETS[name]
    near = difflib.get_close_matches(name, TARGETS, n=1, cutoff=0.6)
    wanted = f" (did you mean {near[0]!r}?)" if near else ""
    raise TargetError(f"unknown target {name!r}{wanted}; known targets: {', '.join(TARGETS)}")
