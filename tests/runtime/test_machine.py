"""CPU features under LLVM's names against flags as Linux prints them."""

import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from iree.compiler import tools

from mxc.runtime import machine

ZEN4 = (
    "fpu cx8 cmov mmx fxsr sse sse2 pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes "
    "avx f16c lahf_lm abm sse4a bmi1 avx2 bmi2 avx512f avx512dq adx avx512ifma avx512cd sha_ni "
    "avx512bw avx512vl avx512_bf16 avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni "
    "avx512_bitalg avx512_vpopcntdq"
)
GRAVITON3 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma "
    "lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg "
    "dcpodp svei8mm svebf16 i8mm bf16 dgh rng"
)


@cache
def features_of(cpu: str, triple: str) -> list[str]:
    """The features that the compiler uses for a CPU, from the IR it makes."""
    text = tools.compile_str(
        "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }",
        extra_args=[
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            f"--iree-llvmcpu-target-cpu={cpu}",
            f"--iree-llvmcpu-target-triple={triple}",
            "--compile-to=preprocessing",
        ],
    ).decode()
    listed = text.split('cpu_features = "', 1)[1].split('"', 1)[0].split(",")
    return [name[1:] for name in listed if name.startswith("+")]


@pytest.mark.parametrize(
    ("cpu", "missing"),
    [
        ("x86-64-v3", ()),
        ("znver4", ()),
        ("znver5", ("avx512vp2intersect", "avxvnni")),
        ("sapphirerapids", ("amx-bf16", "amx-int8", "amx-tile", "avx512fp16", "avxvnni")),
    ],
)
def test_x86_features_as_the_compiler_names_them(cpu: str, missing: tuple[str, ...]) -> None:
    """Each name that the pinned LLVM lists is in the table, spelled as Linux spells it."""
    features = features_of(cpu, "x86_64-unknown-linux-gnu")
    assert len(features) > 20
    assert machine.missing_features(features, "x86_64", frozenset(ZEN4.split())) == missing


@pytest.mark.parametrize(
    ("cpu", "missing"),
    [
        ("neoverse-n1", ()),
        ("neoverse-v1", ()),
        ("neoverse-v2", ("sve-bitperm", "sve2")),
        ("cortex-x4", ("sb", "sve-bitperm", "sve2")),
    ],
)
def test_aarch64_features_as_the_compiler_names_them(cpu: str, missing: tuple[str, ...]) -> None:
    features = features_of(cpu, "aarch64-unknown-linux-gnu")
    assert len(features) > 10
    assert machine.missing_features(features, "aarch64", frozenset(GRAVITON3.split())) == missing


def test_features_that_are_others_together_or_one_of_many() -> None:
    sapphire = {*ZEN4.split(), "avx512_fp16"}
    assert machine.missing_features(["avx10.1"], "x86_64", frozenset(sapphire)) == ()
    for flag in ("avx512_fp16", "avx512vbmi", "avx512f"):
        short = frozenset(sapphire - {flag})
        assert machine.missing_features(["avx10.1"], "x86_64", short) == ("avx10.1",)
    apx = ["egpr", "ndd", "avx10.2"]
    assert machine.missing_features(apx, "x86_64", frozenset({"apx"})) == ("avx10.2",)
    assert machine.missing_features(apx, "x86_64", frozenset(sapphire)) == tuple(apx)
    arm = ["altnzcv", "fptoint", "brbe"]
    assert machine.missing_features(arm, "aarch64", frozenset({"flagm2", "frint"})) == ()
    assert machine.missing_features(arm, "aarch64", frozenset({"flagm2"})) == ("fptoint",)


def test_a_feature_of_no_table_is_missing() -> None:
    assert machine.missing_features(["avx99"], "x86_64", frozenset({"avx"})) == ("avx99",)


def test_flags_of_this_machine() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert machine.cpu_flags(text) == frozenset({"fpu", "avx2"})
    assert machine.cpu_flags("Features\t: fp asimd\n") == frozenset({"fp", "asimd"})
    assert machine.cpu_flags("nothing") is None


def test_features_that_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: None)
    here = machine.architecture()
    assert machine.obstacle(here, ["shstk", "fast-gather"]) is None
    reason = machine.obstacle(here, ["avx2", "shstk"])
    assert reason == f"uses avx2, which cannot be checked on {sys.platform} (no /proc/cpuinfo)"


@pytest.mark.parametrize(
    ("feature", "flag"),
    [
        ("avx512f", "avx512f"),
        ("avx512bw", "avx512bw"),
        ("avx512vl", "avx512vl"),
        ("avx512dq", "avx512dq"),
        ("avx512vbmi", "avx512vbmi"),
        ("avx512bf16", "avx512_bf16"),
        ("avx512vnni", "avx512_vnni"),
        ("avx512vbmi2", "avx512_vbmi2"),
        ("avx2", "avx2"),
        ("fma", "fma"),
        ("f16c", "f16c"),
        ("bmi2", "bmi2"),
        ("gfni", "gfni"),
        ("sse4.2", "sse4_2"),
    ],
)
def test_each_feature_counts(monkeypatch: pytest.MonkeyPatch, feature: str, flag: str) -> None:
    """Code for Zen 4 runs on Zen 4, and not where one flag of it is missing."""
    features = features_of("znver4", "x86_64-unknown-linux-gnu")
    flags = frozenset(ZEN4.split())
    monkeypatch.setattr(machine, "architecture", lambda: "x86_64")
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    assert machine.obstacle("x86_64", features) is None
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags - {flag})
    reason = machine.obstacle("x86_64", features)
    assert reason is not None
    assert feature in reason.removesuffix(", which this CPU does not have").split(" ", 1)[1]


def test_code_of_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "architecture", lambda: "x86_64")
    reason = machine.obstacle("aarch64", [])
    assert reason == "is compiled for aarch64, this machine is x86_64"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty system of eight hardware threads on four cores, 0 and 4, 1 and 5, and so on."""
    cpus, groups = tmp_path / "cpu", tmp_path / "cgroup"
    for cpu in range(8):
        folder = cpus / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    groups.mkdir()
    monkeypatch.setattr(machine, "_CPUS", cpus)
    monkeypatch.setattr(machine, "_CGROUPS", groups)
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return tmp_path


@pytest.mark.parametrize(
    ("allowed", "cores", "confined"),
    [(range(8), 4, False), ({0, 4}, 1, True), ({0, 1, 4}, 2, True), ({7}, 1, True)],
)
def test_hardware_threads_share_a_core(
    system: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: Iterable[int],
    cores: int,
    confined: bool,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    assert machine.usable_cores() == machine.physical_cores() == cores
    assert machine.is_confined() is confined


def test_cores_without_a_topology(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    monkeypatch.setattr(machine, "_CPUS", system / "nowhere")
    assert machine.usable_cores() == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.usable_cores() == 8
    assert not machine.is_confined()


@pytest.mark.parametrize(
    ("own", "files", "quota", "cores"),
    [
        ("0::/\n", {}, None, 4),
        ("0::/\n", {"cpu.max": "max 100000"}, None, 4),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5, 2),
        ("0::/\n", {"cpu.max": "5000 100000"}, 0.05, 1),
        ("0::/\n", {"cpu.max": "900000 100000"}, 9.0, 4),
        # The group above allows less than its own; the limits of others do not count.
        ("0::/a/b\n", {"a/b/cpu.max": "max 1000", "a/cpu.max": "3000 1000"}, 3.0, 3),
        ("0::/a\n", {"a/b/cpu.max": "1000 1000", "a/cpu.max": "3000 1000"}, 3.0, 3),
        # A container that sees its own group as the root, under the name that the host has for it.
        ("0::/docker/1234\n", {"cpu.max": "200000 100000"}, 2.0, 2),
        # Version 1, and a kernel with both.
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "100000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
                "memory/x/cpu.max": "1 100000",
            },
            1.0,
            1,
        ),
        (
            "3:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
            4,
        ),
    ],
)
def test_the_quota_of_a_container(
    system: Path, own: str, files: dict[str, str], quota: float | None, cores: int
) -> None:
    (system / "own").write_text(own)
    for name, text in files.items():
        file = system / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert machine.cpu_quota() == quota
    assert machine.physical_cores() == cores


def test_without_control_groups(system: Path) -> None:
    assert machine.cpu_quota() is None
    assert machine.physical_cores() == 4


@pytest.mark.parametrize(
    ("own", "files", "wanted"),
    [
        ("0::/\n", {}, 3 << 20),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "1048576"}, 1 << 20),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "2097152"}, 2 << 20),
        ("3:cpu:/x\n", {"cpu/x/memory.max": "1"}, 3 << 20),
    ],
)
def test_memory_for_new_work(
    system: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], wanted: int
) -> None:
    (system / "own").write_text(own)
    for name, text in files.items():
        file = system / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (system / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    3072 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", system / "meminfo")
    assert machine.available_memory_bytes() == wanted
    monkeypatch.setattr(machine, "_MEMINFO", system / "nothing")
    assert machine.available_memory_bytes() in (wanted, 8 << 30)


def test_cores_and_memory() -> None:
    assert machine.physical_cores() >= 1
    before = machine.peak_memory_bytes()
    block = bytearray(b"x") * (before + (64 << 20))
    assert machine.peak_memory_bytes() >= len(block)
