"""Which level of an artifact runs on a machine whose flags we make up."""

import ctypes
import errno
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from iree import runtime as rt

from mxc.artifact.manifest import (
    MANIFEST,
    MODULE,
    WEIGHTS,
    FileRecord,
    LevelRecord,
    Manifest,
    TargetRecord,
    WeightRecord,
)
from mxc.errors import ArtifactError, RequestError
from mxc.runtime import load, machine
from mxc.runtime.levels import choose_level, obstacles, passed_over
from mxc.targets import tile_permission

V2 = ("sse4.2",)
V3 = (*V2, "avx2", "fma", "slow-3ops-lea")
V4 = (*V3, "avx512f", "prfchw")
BF16 = (*V4, "avx512bf16")
VNNI = (*V4, "avx512vnni")


def target(name: str, features: tuple[str, ...], architecture: str = "x86_64") -> TargetRecord:
    return TargetRecord(
        name=f"cpu:{name}",
        device="local-task",
        architecture=architecture,
        chip=name,
        features=features,
    )


def manifest(**levels: tuple[str, ...]) -> Manifest:
    records = {
        name: LevelRecord(target=target(name, features), module=f"{name}/{MODULE}", archives=())
        for name, features in levels.items()
    }
    return Manifest(
        mxc_version="1",
        iree_version="1",
        target=target("all", ()),
        activations="f32",
        functions={},
        files={},
        levels=records,
    )


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make this machine an x86_64 with these flags of Linux."""

    def set_flags(text: str) -> None:
        monkeypatch.setattr(machine, "architecture", lambda: "x86_64")
        monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(text.split()))

    return set_flags


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        ("sse4_2", "v2"),
        ("sse4_2 avx2 fma", "v3"),
        ("sse4_2 avx2", "v2"),
        ("sse4_2 avx2 fma avx512f", "v4"),
        ("sse4_2 avx2 fma avx512f avx512_vnni", "vnni"),
        # Neither has all that the other has: the one that was named first.
        ("sse4_2 avx2 fma avx512f avx512_vnni avx512_bf16", "bf16"),
        # avx512f without what else AVX-512 code needs is of no use.
        ("sse4_2 avx512f avx512_bf16 avx512_vnni", "v2"),
    ],
)
def test_the_best_that_may_run_is_taken(
    flags: Callable[[str], None], found: str, taken: str
) -> None:
    flags(found)
    every = manifest(v2=V2, v4=V4, v3=V3, bf16=BF16, vnni=VNNI)
    assert choose_level(every, None, "a.mxc") == taken
    assert obstacles(every)[taken] is None


def test_features_that_tune_make_no_level_better(flags: Callable[[str], None]) -> None:
    flags("sse4_2")
    every = manifest(plain=V2, tuned=(*V2, "fast-gather", "prfchw"))
    assert choose_level(every, None, "a.mxc") == "plain"


def test_a_level_can_be_forced_but_not_onto_a_cpu_that_lacks_it(
    flags: Callable[[str], None],
) -> None:
    flags("sse4_2 avx2 fma")
    every = manifest(v4=V4, v3=V3, v2=V2)
    assert choose_level(every, "v2", "a.mxc") == "v2"
    with pytest.raises(
        ArtifactError,
        match=r"a\.mxc: level v4 uses avx512f, which this CPU does not have; leave --level out",
    ):
        choose_level(every, "v4", "a.mxc")
    with pytest.raises(RequestError, match=r"a\.mxc: no level 'v5'; it has: v4, v3, v2"):
        choose_level(every, "v5", "a.mxc")


def test_where_none_may_run_each_is_named(flags: Callable[[str], None]) -> None:
    flags("sse4_2")
    every = manifest(v4=V4, v3=V3)
    arm = LevelRecord(target=target("neoverse-n1", (), "aarch64"), module="m", archives=())
    every = replace(every, levels={**every.levels, "neoverse-n1": arm})
    with pytest.raises(ArtifactError) as error:
        choose_level(every, None, "a.mxc")
    assert str(error.value) == (
        "a.mxc: none of its levels may run here: v4 uses avx2, fma, avx512f, which this CPU does "
        "not have; v3 uses avx2, fma, which this CPU does not have; neoverse-n1 is compiled for "
        "aarch64, this machine is x86_64; compile the model with --target cpu on this machine"
    )


def test_an_artifact_without_levels_has_one(plain_artifact: Path) -> None:
    model = load(plain_artifact)
    assert (model.level, list(model.manifest.every_level)) == ("cpu", ["cpu"])
    assert load(plain_artifact, level="cpu").level == "cpu"
    with pytest.raises(RequestError, match="no level 'x86-64-v3'; it has: cpu"):
        load(plain_artifact, level="x86-64-v3")


def test_a_manifest_of_levels_survives_being_written() -> None:
    every = manifest(v4=V4, v3=V3)
    weight = WeightRecord(source="w", shape=(4, 32), format="mxfp4", layout="panel16x4")
    other = replace(every.levels["v3"], layouts={"w": ("identity", None)})
    every = replace(every, weights={"w": weight}, levels={**every.levels, "v3": other})
    read = Manifest.from_json(every.to_json(), "here")
    assert read == every
    assert read.at("v4").weights == {"w": weight}
    assert read.at("v3").weights == {"w": replace(weight, layout="identity")}
    assert read.at("v3").target == target("v3", V3)


def test_each_level_maps_its_own_files(plain_artifact: Path, rewrite: Callable[..., None]) -> None:
    """Two levels of one code; the second has other weights, in two archives."""
    own = load(plain_artifact).manifest
    (plain_artifact / "one").mkdir()
    shutil.move(plain_artifact / MODULE, plain_artifact / f"one/{MODULE}")
    shutil.copytree(plain_artifact / "one", plain_artifact / "two")
    twice = np.array([2.0, 20.0, 200.0, 2000.0], np.float32)
    rt.save_archive_file({"scale": twice}, plain_artifact / "weights-two.irpa")
    rt.save_archive_file({"unused": twice}, plain_artifact / "weights-both.irpa")
    rt.save_archive_file({"scale": twice / 2}, plain_artifact / "weights-one.irpa")
    (plain_artifact / WEIGHTS).unlink()
    shared = "weights-both.irpa"
    levels = {
        name: LevelRecord(
            target=replace(own.target, name=f"cpu:{name}"),
            module=f"{name}/{MODULE}",
            archives=(shared, f"weights-{name}.irpa"),
        )
        for name in ("one", "two")
    }
    files = {
        file.relative_to(plain_artifact).as_posix(): FileRecord(
            bytes=file.stat().st_size, sha256=sha256(file.read_bytes()).hexdigest()
        )
        for file in plain_artifact.rglob("*")
        if file.is_file() and file.name != MANIFEST
    }
    rewrite(plain_artifact, levels=levels, files=files)
    ones = np.ones(4, np.float32)
    for name, wanted in (("one", twice / 2), ("two", twice), (None, twice / 2)):
        model = load(plain_artifact, level=name)
        np.testing.assert_array_equal(model.call("weighted", ones)[0], wanted)
        assert model.manifest.target.name == f"cpu:{name or 'one'}"
        assert len(model.archives) == 2
    (plain_artifact / "weights-one.irpa").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"weights-one\.irpa: 1 bytes, the manifest says"):
        load(plain_artifact, level="two")
    del files["weights-one.irpa"]
    rewrite(plain_artifact, files=files)
    with pytest.raises(ArtifactError, match=r"manifest\.json: lists no weights-one\.irpa"):
        load(plain_artifact)


TILED = (*BF16, "amx-tile", "amx-bf16")
AMX = "sse4_2 avx2 fma avx512f avx512_bf16 amx_tile amx_bf16"


def test_tiles_run_where_they_are_given(
    flags: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = manifest(amx=TILED, v3=V3)
    monkeypatch.setattr(machine, "refusal", lambda: None)
    flags(AMX)
    assert choose_level(every, None, "a.mxc") == "amx"
    assert passed_over(every, "amx") is None


def test_where_tiles_are_refused_the_next_level_runs(
    flags: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "refusal", lambda: "Linux refuses them (no)")
    every, alone = manifest(amx=TILED, v3=V3), manifest(amx=TILED)
    flags(AMX)
    assert choose_level(every, None, "a.mxc") == "v3"
    assert passed_over(every, "v3") == "amx uses amx-tile, and Linux refuses them (no)"
    with pytest.raises(ArtifactError, match=r"the code uses amx-tile, and Linux refuses them") as e:
        choose_level(alone, None, "a.mxc")
    assert str(e.value).endswith("compile the model with --target cpu on this machine")
    # A CPU that has none is not asked for any.
    monkeypatch.setattr(machine, "refusal", lambda: pytest.fail("was asked"))
    flags("sse4_2 avx2 fma avx512f avx512_bf16")
    assert choose_level(every, None, "a.mxc") == "v3"
    missing = "amx uses amx-tile, amx-bf16, which this CPU does not have"
    assert passed_over(every, "v3") == missing
    assert passed_over(manifest(v4=V4, v3=V3), "v3") is None


def test_what_refuses_tiles_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system call that Linux has for it, once in a process."""
    asked: list[tuple[int, ...]] = []

    class Library:
        def syscall(self, *words: int) -> int:
            asked.append(words)
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library())
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = tile_permission.refusal.__wrapped__()
    assert found == "Linux refuses them to this process (Operation not supported)"
    assert asked == [(158, 0x1023, 18)]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "has no tiles to give" in str(tile_permission.refusal.__wrapped__())
    assert len(asked) == 1
