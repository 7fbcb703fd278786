"""CPU features under LLVM's names against flags as Linux prints them."""

import sys

import pytest
from iree.compiler import tools

from mxc.dialects.errors import ArtifactError
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
    [("neoverse-n1", ()), ("neoverse-v1", ()), ("neoverse-v2", ("sve-bitperm", "sve2"))],
)
def test_aarch64_features_as_the_compiler_names_them(cpu: str, missing: tuple[str, ...]) -> None:
    features = features_of(cpu, "aarch64-unknown-linux-gnu")
    assert len(features) > 10
    assert machine.missing_features(features, "aarch64", frozenset(GRAVITON3.split())) == missing


def test_a_feature_of_no_table_is_missing() -> None:
    assert machine.missing_features(["avx99"], "x86_64", frozenset({"avx"})) == ("avx99",)


def test_flags_of_this_machine() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert machine.cpu_flags(text) == {"fpu", "avx2"}
    assert machine.cpu_flags("Features\t: fp asimd\n") == {"fp", "asimd"}
    assert machine.cpu_flags("nothing") is None


def test_features_that_cannot_be_checked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: None)
    here = machine.architecture()
    machine.check_cpu(here, ["shstk", "fast-gather"], "a.mxc")
    with pytest.raises(ArtifactError, match=rf"a\.mxc: the code uses avx2, .* {sys.platform}"):
        machine.check_cpu(here, ["avx2", "shstk"], "a.mxc")


def test_cores_and_memory() -> None:
    assert machine.physical_cores() >= 1
    before = machine.peak_memory_bytes()
    block = bytearray(b"x") * (before + (64 << 20))
    assert machine.peak_memory_bytes() >= len(block)
