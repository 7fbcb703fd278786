"""Properties of this machine: architecture, CPU features under LLVM names, cores, memory.

An artifact states the LLVM features that its code may use. They are compared with the features that
the operating system reports before any of that code runs, because an instruction that the CPU lacks
would end the process.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from mxc.targets.tile_permission import TILES, refusal

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")

#: `platform.machine()` in lower case -> architecture as LLVM spells it.
_ARCHITECTURES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}

# LLVM feature (X86.td, AArch64Features.td) -> flag of /proc/cpuinfo (arch/x86/include/asm/
# cpufeatures.h, arch/arm64/kernel/cpuinfo.c). Lists only names that are spelled differently.
_X86_FLAGS = {
    "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg", "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxifma": "avx_ifma", "avxneconvert": "avx_ne_convert", "avxvnni": "avx_vnni",
    "avxvnniint16": "avx_vnni_int16", "avxvnniint8": "avx_vnni_int8", "amx-bf16": "amx_bf16",
    "amx-complex": "amx_complex", "amx-fp16": "amx_fp16", "amx-int8": "amx_int8",
    "amx-tile": "amx_tile", "bmi": "bmi1", "crc32": "sse4_2", "lzcnt": "abm",
    "pclmul": "pclmulqdq", "rdrnd": "rdrand", "sahf": "lahf_lm", "sha": "sha_ni", "sse3": "pni",
    "sse4.1": "sse4_1", "sse4.2": "sse4_2", "x87": "fpu",
    # The parts of APX have one bit in CPUID, and one flag.
    "ccmp": "apx", "cf": "apx", "egpr": "apx", "jmpabs": "apx", "ndd": "apx", "nf": "apx",
    "ppx": "apx", "push2pop2": "apx", "zu": "apx",
}  # fmt: skip
#: Features without a Linux flag, as the set of flags that they consist of. Intel AVX10 Architecture
#: Specification (361050), section 3: AVX10.1 is the AVX-512 of Sapphire Rapids, and no more.
_TOGETHER = {
    "avx10.1": (
        "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vbmi2", "avx512_vnni",
        "avx512_bf16", "avx512_bitalg", "avx512_fp16", "avx512_vpopcntdq", "avx512ifma",
        "avx512vbmi",
    ),
}  # fmt: skip
_AARCH64_FLAGS = {
    "altnzcv": "flagm2", "fptoint": "frint", "sme-f64f64": "smef64f64",
    "sme-i16i64": "smei16i64",
    "bf16": "bf16", "complxnum": "fcma", "crc": "crc32", "dotprod": "asimddp", "fp-armv8": "fp",
    "fp16fml": "asimdfhm", "fullfp16": "asimdhp", "jsconv": "jscvt", "lse": "atomics",
    "neon": "asimd", "pauth": "paca", "rand": "rng", "rcpc": "lrcpc", "rdm": "asimdrdm",
    "sve-aes": "sveaes", "sve-bitperm": "svebitperm", "sve-sha3": "svesha3", "sve-sm4": "svesm4",
    "sve2-aes": "sveaes", "sve2-bitperm": "svebitperm", "sve2-sha3": "svesha3",
    "sve2-sm4": "svesm4",
}  # fmt: skip

#: Features whose instructions a tensor program never executes: privileged, mode, cache control,
#: random number, tracing and prefetch instructions, which LLVM emits only for an intrinsic or a
#: security option. A virtual machine often hides them although the named CPU has them.
IGNORABLE = frozenset({
    # x86-64
    "64bit", "cldemote", "clflushopt", "clwb", "clzero", "enqcmd", "fsgsbase", "hreset", "invpcid",
    "kl", "movdir64b", "movdiri", "mwaitx", "pconfig", "pku", "prefetchi", "prfchw", "ptwrite",
    "rdpid", "rdpru", "rdrnd", "rdseed", "rtm", "serialize", "sgx", "shstk", "tsxldtrk", "uintr",
    "waitpkg", "wbnoinvd", "widekl", "xsave", "xsavec", "xsaveopt", "xsaves",
    # aarch64
    "brbe", "ccdp", "ccidx", "ccpp", "ete", "fpac", "ls64", "mte", "perfmon", "predres", "ras",
    "reserve-x18", "rme", "spe", "spe-eef", "specrestrict", "ssbs", "trbe",
})  # fmt: skip
#: Prefixes of LLVM features that tune the code and add no instruction.
TUNING = ("fast-", "slow-", "prefer-", "tuning-", "false-deps-", "no-")


def architecture() -> str:
    """Return this machine's architecture as LLVM spells it ("x86_64", "aarch64")."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def cpu_flags(cpuinfo: str | None = None) -> frozenset[str] | None:
    """Return the flags of the first CPU in the text of /proc/cpuinfo; None without that file."""
    if cpuinfo is None:
        if not _CPUINFO.is_file():
            return None
        cpuinfo = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return None


def missing_features(features: Iterable[str], arch: str, flags: frozenset[str]) -> tuple[str, ...]:
    """Return the LLVM `features` that a CPU with these /proc/cpuinfo `flags` lacks.

    A feature that is in no table is searched among the flags under its own name, with "-" and "."
    replaced by "_". An unknown feature is therefore reported as missing, never assumed.
    """
    spelled = _AARCH64_FLAGS if arch == "aarch64" else _X86_FLAGS

    def needed(feature: str) -> tuple[str, ...]:
        plain = feature.replace("-", "_").replace(".", "_")
        return _TOGETHER.get(feature, (spelled.get(feature, plain),))

    return tuple(
        feature
        for feature in features
        if _matters(feature) and not flags.issuperset(needed(feature))
    )


def relevant(features: Iterable[str]) -> frozenset[str]:
    """Return the LLVM features that add instructions which a tensor program may execute."""
    return frozenset(feature for feature in features if _matters(feature))


def _matters(feature: str) -> bool:
    # v9a, v8.2a: architecture versions, whose extensions are listed as features too.
    version = feature[:1] == "v" and feature[1:2].isdigit()
    return not (version or feature in IGNORABLE or feature.startswith(TUNING))


def obstacle(arch: str, features: Iterable[str]) -> str | None:
    """Return why code for a CPU must not run on this machine, as a clause; None where it may.

    arch, features: architecture and LLVM features, as the artifact's manifest states them. For code
    with AMX tiles this requests their permission from the kernel, which the process then keeps.
    """
    here = architecture()
    if arch != here:
        return f"is compiled for {arch}, this machine is {here}"
    checked = [feature for feature in features if _matters(feature)]
    flags = cpu_flags()
    if flags is None:
        if not checked:
            return None
        unchecked = f"which cannot be checked on {sys.platform} (no {_CPUINFO})"
        return f"uses {', '.join(checked)}, {unchecked}"
    missing = missing_features(checked, arch, flags)
    if missing:
        return f"uses {', '.join(missing)}, which this CPU does not have"
    refused = refusal() if TILES in checked else None
    return None if refused is None else f"uses {TILES}, and {refused}"


def usable_cores() -> int:
    """Return the number of physical cores that this process may be scheduled on (at least 1).

    Two hardware threads of one core share its vector units, so that a second worker on the core
    adds no speed.
    """
    return len(core_cpus()) or os.cpu_count() or 1


def core_cpus() -> list[set[int]]:
    """Return the hardware threads (CPU numbers) of each usable core, in ascending order.

    Empty where the operating system does not report them.
    """
    cores: dict[str, set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ():
        siblings = _CPUS / f"cpu{cpu}/topology/thread_siblings_list"
        try:
            core = siblings.read_text(encoding="ascii").strip()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, set()).add(cpu)
    return list(cores.values())


def is_confined() -> bool:
    """Whether this process was given only some of the machine's CPUs (taskset, a cpuset)."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)


def physical_cores() -> int:
    """Return the number of useful workers: the usable cores, limited by a container's quota."""
    quota = cpu_quota()
    return usable_cores() if quota is None else max(1, min(usable_cores(), math.ceil(quota)))


def cpu_quota() -> float | None:
    """Return the number of CPUs that the control groups of this process allow; None for no limit.

    With more workers than that, Linux stops some of them for the rest of each period, and all
    others wait for them. Source: Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
    scheduler/sched-bwc.rst of Linux.
    """
    known = [limit for limit in map(_limit, _control_groups("cpu")) if limit is not None]
    return min(known, default=None)


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, version 2 or 1, and of their parents."""
    try:
        listed = _OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in listed:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        # In a container the path may be that of the host; its own limits are then at the root.
        for folder in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
            yield folder
            if folder == _CGROUPS:
                break


def _limit(cgroup: Path) -> float | None:
    """Return the CPU limit of one control group, version 2 or 1, in CPUs; None for no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (cgroup / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None  # "max", or -1
    return int(quota) / int(period)


def available_memory_bytes() -> int:
    """Return the bytes of memory available to new work.

    The least of Linux's estimate (MemAvailable) and the limits of the control groups; 8 GiB where
    none of them is known.
    """
    found = []
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    for folder in _control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limit = (folder / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            found += [int(limit)] if limit.isdecimal() else []
    return min(found, default=8 << 30)


def peak_memory_bytes() -> int:
    """Return the largest resident set of this process so far in bytes, mapped weights included."""
    import resource  # does not exist on Windows; the rest of this module does not need it

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
