"""Loading refuses what it must before any code runs; calls give what numpy gives."""

import hashlib
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mxc.artifact.manifest import MANIFEST, MODULE, WEIGHTS, FileRecord, TargetRecord, TensorType
from mxc.errors import ArtifactError, RequestError
from mxc.runtime import load, machine, session


def test_call_gives_what_numpy_gives(plain_artifact: Path) -> None:
    model = load(plain_artifact)
    a, b = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
    (got,) = model.call("main", a, b)
    np.testing.assert_array_equal(got, a + b)
    (weighted,) = model.call("weighted", a)
    np.testing.assert_array_equal(weighted, a * np.array([1, 10, 100, 1000], np.float32))


def test_every_kind_of_value_crosses_the_boundary(plain_artifact: Path) -> None:
    a = np.array([1.5, -2, 0, 3], ml_dtypes.bfloat16)
    b = np.array([[True, False, True, True], [False, False, True, False]])
    d = np.array([0.5, -448], ml_dtypes.float8_e4m3fn)
    doubled, flags, number, small = load(plain_artifact).call("types", a, b, -7, d)
    assert doubled.dtype == a.dtype
    assert small.dtype == d.dtype
    np.testing.assert_array_equal(doubled.astype(np.float32), [3, -4, 0, 6])
    np.testing.assert_array_equal(flags, b)
    assert flags.dtype == np.bool_
    assert number.dtype == np.int32
    assert number == -7
    np.testing.assert_array_equal(small.astype(np.float32), [0.5, -448])


def test_a_model_may_end_with_an_exception(plain_artifact: Path) -> None:
    """Nothing else refers to it when the second argument raises one."""
    program = (
        "import sys\n"
        "from mxc.runtime import load\n"
        "try:\n"
        "    load(sys.argv[1]).call('weighted', [][0])\n"
        "except IndexError:\n"
        "    print('reported')\n"
    )
    command = [sys.executable, "-c", program, str(plain_artifact)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "reported\n", "")


def test_a_fork_of_the_process_is_refused_and_does_not_hang(plain_artifact: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "import numpy as np\n"
        "from mxc.errors import RequestError\n"
        "from mxc.runtime import load\n"
        "model, a = load(sys.argv[1]), np.ones(4, np.float32)\n"
        "model.call('main', a, a)\n"
        "if os.fork():\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "signal.alarm(20)\n"
        "try:\n"
        "    model.call('main', a, a)\n"
        "except RequestError as error:\n"
        "    os._exit(7 if 'before this process was forked' in str(error) else 8)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(plain_artifact)], timeout=60)
    assert done.returncode == 7


def test_rank_0_by_value_and_by_buffer(plain_artifact: Path) -> None:
    model = load(plain_artifact)
    for arguments in ((3.5, 1.25), (np.float32(3.5), np.array(1.25, np.float32))):
        (got,) = model.call("rank0", *arguments)
        assert got.shape == ()
        assert got == np.float32(2.25)


def test_arguments_are_not_changed_and_results_are_owned(plain_artifact: Path) -> None:
    model = load(plain_artifact)
    given = np.array([1, 2, 3, 250], np.uint8)  # packed bytes are unsigned in numpy
    (first,) = model.call("touch", given)
    (second,) = model.call("touch", np.zeros(4, np.int8))
    np.testing.assert_array_equal(given, [1, 2, 3, 250])
    np.testing.assert_array_equal(first.view(np.uint8), [100, 2, 3, 250])
    np.testing.assert_array_equal(second, [100, 0, 0, 0])
    first[:] = 0
    np.testing.assert_array_equal(second, [100, 0, 0, 0])


def test_strided_arguments(plain_artifact: Path) -> None:
    wide = np.arange(8, dtype=np.float32)
    (got,) = load(plain_artifact).call("main", wide[::2], wide[::-2])
    np.testing.assert_array_equal(got, wide[::2] + wide[::-2])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("nope", (), r"no function 'nope'; it has: main, types, rank0"),
        (
            "main",
            (np.zeros(4, np.float32),),
            r"main: takes 2 arguments \(f32 \[4\], f32 \[4\]\), got 1",
        ),
        (
            "main",
            (np.zeros(4, np.float32), np.zeros(5, np.float32)),
            r"main, argument 1: wants f32 \[4\], got float32 \[5\]",
        ),
        (
            "main",
            (np.zeros(4), np.zeros(4, np.float32)),
            r"main, argument 0: wants f32 \[4\], got float64 \[4\]",
        ),
        (
            "types",
            (np.zeros(4, ml_dtypes.bfloat16), np.zeros((2, 5), bool), 1, np.zeros(2)),
            r"types, argument 1: wants i1 \[\?, 4\], got bool \[2, 5\]",
        ),
        (
            "types",
            (np.zeros(4, ml_dtypes.bfloat16), np.zeros((2, 4), bool), 1.5, np.zeros(2)),
            r"types, argument 2: wants i32 \[\], got 1.5",
        ),
        (
            "types",
            (np.zeros(4, ml_dtypes.bfloat16), np.zeros((2, 4), bool), 1 << 31, np.zeros(2)),
            r"types, argument 2: 2147483648 does not fit i32",
        ),
        (
            "types",
            (np.zeros(4, ml_dtypes.bfloat16), np.zeros((2, 4), bool), math.nan, np.zeros(2)),
            r"types, argument 2: nan does not fit i32",
        ),
        (
            "types",
            (
                np.zeros(4, ml_dtypes.bfloat16),
                np.zeros((2, 4), bool),
                np.array(1, ">i4"),
                np.zeros(2),
            ),
            r"types, argument 2: wants i32 \[\], got >i4 \[\]",
        ),
        (
            "types",
            (np.zeros(4, np.uint16), np.zeros((2, 4), bool), 1, np.zeros(2)),
            r"types, argument 0: wants bf16 \[4\], got uint16 \[4\]",
        ),
    ],
)
def test_calls_that_do_not_fit(
    plain_artifact: Path, name: str, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        load(plain_artifact).call(name, *arguments)


def test_device_of_the_same_kind(plain_artifact: Path) -> None:
    ones = np.ones(4, np.float32)
    np.testing.assert_array_equal(
        load(plain_artifact, device="local-sync").call("main", ones, ones)[0], ones + ones
    )
    with pytest.raises(RequestError, match="runs on local-task or local-sync; device 'hip'"):
        load(plain_artifact, device="hip")


def test_gpu_artifact_without_its_gpu(plain_artifact: Path, rewrite: Callable[..., None]) -> None:
    rewrite(
        plain_artifact,
        target=TargetRecord(name="x", device="vulkan", architecture="amdgcn", chip="x"),
    )
    with pytest.raises(ArtifactError, match=r"plain\.mxc: this machine has no device 'vulkan'"):
        load(plain_artifact)


def test_weights_are_mapped_from_the_file(plain_artifact: Path) -> None:
    (plain_artifact / WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match=r"weights\.irpa: missing"):
        load(plain_artifact)


def test_module_that_asks_for_a_weight_that_is_not_there(
    plain_artifact: Path, rewrite: Callable[..., None]
) -> None:
    from mxc.artifact.manifest import read_manifest

    files = dict(read_manifest(plain_artifact).files)
    del files[WEIGHTS]
    rewrite(plain_artifact, files=files)
    with pytest.raises(ArtifactError, match=r"cannot load it for cpu .*scale"):
        load(plain_artifact)


def test_manifest_and_module_that_disagree(
    plain_artifact: Path, rewrite: Callable[..., None]
) -> None:
    model = load(plain_artifact)
    functions = dict(model.functions)
    rewrite(plain_artifact, functions={**functions, "gone": functions["main"]})
    with pytest.raises(ArtifactError, match="no function 'gone' although the manifest lists it"):
        load(plain_artifact)
    rewrite(plain_artifact, functions={"main": functions["weighted"]})
    with pytest.raises(ArtifactError, match=r"'main' is declared as .* says 1 inputs"):
        load(plain_artifact)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mxc_version": "9.9"}, r"compiled with mxc 9\.9, installed is mxc"),
        ({"iree_version": "1.0"}, r"compiled with IREE 1\.0, installed is IREE 3"),
        ({"weights_present": False}, "compiled with --weights none: it can be inspected"),
        ({"schema": 7}, "manifest schema 7, this mxc reads schema 3"),
        ({"files": {}}, r"manifest\.json: lists no module\.vmfb"),
        (
            {
                "target": TargetRecord(
                    name="c", device="local-task", architecture="riscv64", chip="x"
                )
            },
            "the code is compiled for riscv64, this machine is",
        ),
        (
            {
                "target": TargetRecord(
                    name="c",
                    device="local-task",
                    architecture=machine.architecture(),
                    chip="x",
                    features=("shstk", "quantum-adder"),
                )
            },
            r"the code uses quantum-adder, which this CPU does not have; .* --target cpu",
        ),
    ],
)
def test_refused_before_a_device_is_opened(
    plain_artifact: Path,
    rewrite: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, object],
    message: str,
) -> None:
    monkeypatch.setattr(session, "open_devices", lambda *_: pytest.fail("a device was opened"))
    rewrite(plain_artifact, **fields)
    with pytest.raises(ArtifactError, match=message):
        load(plain_artifact)


@pytest.mark.parametrize("name", [MODULE, WEIGHTS])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_damaged_files(
    plain_artifact: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    monkeypatch.setattr(session, "open_devices", lambda *_: pytest.fail("a device was opened"))
    file = plain_artifact / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
        message = rf"{name}: missing"
    elif damage == "truncated":
        file.write_bytes(data[:-1])
        message = rf"{name}: {len(data) - 1} bytes, the manifest says {len(data)}"
    else:
        data[-1] ^= 1
        file.write_bytes(data)
        message = rf"{name}: altered after it was written \(SHA-256"
    with pytest.raises(ArtifactError, match=message):
        load(plain_artifact)


def test_a_damaged_header_of_weights_is_refused_or_changes_nothing(
    plain_artifact: Path, rewrite: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose checksum nobody compares, because it is large."""
    monkeypatch.setattr("mxc.runtime.integrity.SMALL_WEIGHTS", 16)
    file = plain_artifact / WEIGHTS
    data = file.read_bytes()
    first = data.index(np.array([1, 10, 100, 1000], np.float32).tobytes())
    x = np.array([1, 2, 3, 4], np.float32)
    refused = 0
    for at in range(first):
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        try:
            (y,) = load(plain_artifact).call("weighted", x)
        except ArtifactError:
            refused += 1
        else:
            np.testing.assert_array_equal(y, x * np.array([1, 10, 100, 1000], np.float32))
    assert first - 8 < refused <= first


def test_a_module_that_does_not_verify(plain_artifact: Path, rewrite: Callable[..., None]) -> None:
    file = plain_artifact / MODULE
    data = file.read_bytes()
    files = dict(load(plain_artifact).manifest.files)
    for damaged in (data[:64], b"", b"x" * 4096, data[: len(data) // 2], data[:200] + bytes(99)):
        file.write_bytes(damaged)
        sum_ = hashlib.sha256(damaged).hexdigest()
        rewrite(
            plain_artifact,
            files={**files, MODULE: FileRecord(bytes=len(damaged), sha256=sum_)},
        )
        with pytest.raises(ArtifactError, match="IREE cannot load it for cpu"):
            load(plain_artifact)


def test_large_weights_are_checksummed_on_request(
    plain_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxc.runtime.integrity.SMALL_WEIGHTS", 16)
    file = plain_artifact / WEIGHTS
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    load(plain_artifact)
    with pytest.raises(ArtifactError, match=r"weights\.irpa: altered"):
        load(plain_artifact, verify=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not an artifact: it holds no manifest.json"),
        ("{", "manifest.json: not JSON"),
        ("[]", "manifest schema list"),
        ('{"schema": 1}', "schema 1, this mxc reads schema 3; compile the artifact again"),
        ('{"schema": 3}', "malformed manifest"),
    ],
)
def test_folders_that_are_no_artifacts(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path)
    with pytest.raises(ArtifactError, match="no such artifact"):
        load(tmp_path / "gone")


def test_a_checkpoint_is_compiled_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ArtifactError, match="a checkpoint is compiled first, by `mxc compile`"):
        load(tmp_path)


def test_a_file_outside_of_the_folder_is_not_read(
    plain_artifact: Path, rewrite: Callable[..., None]
) -> None:
    files = load(plain_artifact).manifest.files
    rewrite(plain_artifact, files={**files, "../secret": files[MODULE]})
    with pytest.raises(ArtifactError, match=r"lists '\.\./secret', which is outside"):
        load(plain_artifact)


def test_types_that_are_not_the_modules(plain_artifact: Path, rewrite: Callable[..., None]) -> None:
    model = load(plain_artifact)
    odd = TensorType(shape=(4,), dtype="f64")
    main = model.functions["main"]
    rewrite(plain_artifact, functions={"main": type(main)(inputs=(odd, odd), outputs=main.outputs)})
    with pytest.raises(ArtifactError, match=r"says 2 inputs \(4xf64, 4xf64\)"):
        load(plain_artifact)


def test_results_may_outlive_the_model_at_exit(toy_artifact: Path) -> None:
    """IREE crashes when a buffer outlives its device; at exit Python frees in any order."""
    code = (
        "import sys; import numpy as np; from mxc.runtime import load\n"
        "from mxc.runtime.plans import plan_of\n"
        "model = load(sys.argv[1]); seq = model.sequence(); seq.feed([1, 2, 3, 4, 5, 6])\n"
        "steps = seq._shared._steps; plan = plan_of([seq.run(np.zeros(2, np.int32))], steps)\n"
        "sys.kept = model.invoke('step', steps.arguments(plan))\n"
        "print('end')\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(toy_artifact)], capture_output=True, text=True, check=False
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "end\n", "")


def test_runtime_never_imports_the_compiler(toy_artifact: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['iree.compiler'] = None\n"
        "import mxc; seq = mxc.load(sys.argv[1]).sequence(); print(seq.feed([1]).shape)\n"
        "import mxc.runtime.text, mxc.runtime.sampling, mxc.runtime.completions.opened\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(toy_artifact)], capture_output=True, text=True, check=False
    )
    assert (out.returncode, out.stdout) == (0, "(1, 7)\n"), out.stderr
