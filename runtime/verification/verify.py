"""`mxc verify-gpu`: runs each kernel of an artifact on a GPU and compares it with the simulator."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mxc.artifact.manifest import MANIFEST, REPORT, TensorType, read_json, read_manifest
from mxc.artifact.versions import iree_version, mxc_version
from mxc.errors import ArtifactError, MxcError, RequestError
from mxc.runtime import arrays
from mxc.runtime.session import Model
from mxc.runtime.session import load as load_model
from mxc.runtime.simulated import SIMULATOR, SimulatedModel, load
from mxc.runtime.verification.compare import Comparison, compare_arrays
from mxc.runtime.verification.device import Check, VerifyingDevice
from mxc.runtime.verification.hip import CURE, Chip, Hip, open_library
from mxc.runtime.verification.simulated_hip import SimulatedHip

#: Version of the file format, raised when a reader of the old format would misread the new one.
SCHEMA = 1
#: Number of timed calls of a whole function.
_CALLS = 5
_SEED = 20250


@dataclass(frozen=True, kw_only=True)
class KernelResult:
    """Result of one kernel with one number of workgroups, as the file records it.

    `model_seconds`: the report's estimate, None where it does not know the sizes. `ratio`:
    `seconds` / `model_seconds`. `error` and `bound`: see `Comparison`.
    """

    name: str
    operation: str
    arguments: dict[str, Any]
    types: tuple[str, ...]
    compared_bytes: int
    error: float
    bound: float
    agrees: bool
    seconds: float
    warm_seconds: float
    model: str | None
    model_seconds: float | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class FunctionResult:
    """Result of a whole call by IREE's own driver, compared with the same call kernel by kernel."""

    name: str
    error: float
    bound: float
    agrees: bool
    seconds: float


@dataclass(kw_only=True)
class Verification:
    """The contents of the file. `failure`: why verification ended early, or None."""

    schema: int = SCHEMA
    artifact: str
    digest: str
    target: str
    mxc: str = field(default_factory=mxc_version)
    iree: str = field(default_factory=iree_version)
    device: str
    architecture: str
    driver: dict[str, int]
    system: str = field(default_factory=platform.platform)
    seed: int = _SEED
    kernels: list[KernelResult] = field(default_factory=list)
    functions: list[FunctionResult] = field(default_factory=list)
    failure: str | None = None

    @property
    def wrong(self) -> int:
        """Number of kernels and calls that exceed their bounds."""
        results: list[KernelResult | FunctionResult] = [*self.kernels, *self.functions]
        return sum(not each.agrees for each in results)

    @property
    def agrees(self) -> bool:
        """Whether everything ran and is within its bounds."""
        return self.failure is None and not self.wrong

    def to_json(self) -> str:
        """Return the text of the file; errors that are not finite are strings ("inf", "nan")."""
        raw = {**asdict(self), "agrees": self.agrees}
        for each in (*raw["kernels"], *raw["functions"]):
            if not np.isfinite(each["error"]):
                each["error"] = str(each["error"])
        return json.dumps(raw, indent=1, allow_nan=False) + "\n"


def verify(
    path: Path,
    *,
    library: Any,
    uri: str | None,
    index: int | None,
    function: str,
    arguments: Sequence[Any] | None,
    tokens: int | None,
    repetitions: int,
    seen: Callable[[KernelResult | FunctionResult], None],
) -> Verification:
    """Run an artifact kernel by kernel on a GPU, and then as a whole.

    library: HIP's library, None to search for it. uri: the IREE device for the whole run. index:
    the GPU, by default the first with the artifact's architecture. A program's `function` is called
    with `arguments`, or random ones if there are none; a language model reads `tokens` random
    tokens and decodes one more, by default the token whose kernels the report estimates.
    repetitions: number of timed runs. seen: called with each result.

    Raises RequestError where there is no GPU for the artifact, and for arguments that do not fit.
    """
    manifest = read_manifest(path)
    known = _Report(path)
    hip = Hip(open_library() if library is None else library)
    chip = _chosen(hip.chips, index, manifest.target.chip or manifest.target.name, path)
    hip.use(chip)
    found = Verification(
        artifact=path.name,
        digest=_digest(path),
        target=manifest.target.name,
        device=chip.name,
        architecture=chip.architecture,
        driver=hip.versions,
    )

    def checked(check: Check) -> None:
        result = known.result(check)
        found.kernels.append(result)
        seen(result)

    devices: list[VerifyingDevice] = []

    def make(parameters: Mapping[str, arrays.Array]) -> VerifyingDevice:
        types = known.types
        devices.append(VerifyingDevice(parameters, hip, types, checked, repetitions))
        return devices[-1]

    model = load(path, make=make)
    length = known.decoded - 1 if tokens is None else tokens
    call = _call(model, function, arguments, length, known.set_size)
    try:
        wanted = call(model)
    except RequestError as error:
        where = devices[-1].current
        if not where:
            raise
        found.failure = f"{where}: {error}"
        return found
    try:
        whole = load_model(path, device=uri)
        results = [call(whole)]
        seconds = []
        for _ in range(_CALLS):
            start = time.perf_counter()
            results.append(call(whole))
            seconds.append(time.perf_counter() - start)
    except MxcError as error:
        found.failure = f"the whole, by IREE: {error}"
        return found
    for name, (kind, right) in wanted.items():
        compared = compare_arrays(right, results[0][name][1], kind)
        result = _whole(name, compared, min(seconds))
        found.functions.append(result)
        seen(result)
    return found


def simulated_library(path: Path) -> SimulatedHip:
    """Return HIP on the simulator, for the target of an artifact."""
    return SimulatedHip(read_manifest(path).target.name)


def _whole(name: str, compared: Comparison, seconds: float) -> FunctionResult:
    return FunctionResult(
        name=name,
        error=compared.error,
        bound=compared.bound,
        agrees=compared.agrees,
        seconds=seconds,
    )


def _chosen(chips: Sequence[Chip], index: int | None, target: str, path: Path) -> Chip:
    """Return the GPU to use. Raises RequestError where none has the artifact's architecture."""
    here = [chip for chip in chips if index is None or chip.index == index]
    for chip in here:
        if chip.architecture.partition(":")[0] == target:
            return chip
    listed = ", ".join(f"{chip.index}: {chip.name} ({chip.architecture})" for chip in chips)
    which = "no GPU here is one" if index is None else f"GPU {index} is none"
    raise RequestError(
        f"{path}: compiled for {target}, and {which} (found {listed}); compile it for that, or "
        f"{CURE}"
    )


#: MLIR type and value of each result, by name.
_Results = dict[str, tuple[str, arrays.Array]]


def _call(
    model: Model,
    function: str,
    given: Sequence[Any] | None,
    tokens: int,
    sized: Callable[[int, int], None],
) -> Callable[[Model], _Results]:
    """Return a function that calls a model with fixed arguments and returns the results.

    sized: called before each step of a language model with its rows and the length of its sequence.
    """
    generator = np.random.default_rng(_SEED)
    record = model.manifest.model
    if record is not None:
        tokens = min(tokens, record.max_sequence_length - 1)
        prompt = generator.integers(0, record.vocab_size, tokens + 1).tolist()

        def read(chosen: Model) -> _Results:
            sequence = chosen.sequence()
            sized(tokens, tokens)
            row = sequence.feed(prompt[:-1], last_only=True)
            sized(1, tokens + 1)
            return {
                f"prompt of {tokens}": ("f32", row),
                "decode": ("f32", sequence.feed(prompt[-1:])),
            }

        return read
    if function not in model.functions:
        raise RequestError(
            f"{model.path}: no function {function!r}; it has: {', '.join(model.functions)}"
        )
    kinds = model.functions[function]
    values = list(given) if given else [_random(kind, generator) for kind in kinds.inputs]

    def invoke(chosen: Model) -> _Results:
        results = chosen.call(function, *values)
        return {
            f"{function}, result {n}": (kind.dtype, np.asarray(value))
            for n, (kind, value) in enumerate(zip(kinds.outputs, results, strict=True))
        }

    return invoke


def _random(kind: TensorType, generator: np.random.Generator) -> arrays.Array:
    """Return a random argument.

    Floats are normally distributed. Bytes are neither NaN nor large, as packed elements and as
    scales. Other integers are 0 or 1.
    """
    if -1 in kind.shape:
        raise RequestError(
            f"an argument is {arrays.describe(kind)}, whose size comes with the call; "
            "give each argument as --input FILE.npy"
        )
    dtype = arrays.dtype_of(kind.dtype, "an argument")
    shape = kind.shape
    if kind.dtype in ("i8", "f8E8M0FNU"):
        return generator.integers(0x60, 0x7B, shape).astype(np.uint8).view(dtype)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape).astype(dtype)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def _digest(path: Path) -> str:
    """Return the SHA-256 of the artifact's manifest, which lists the SHA-256 of other files."""
    return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()


class _Report:
    """The kernels in the report of an artifact, with estimates for the step that runs.

    The report has estimates for some steps of a language model, its samples; see `set_size`.
    """

    def __init__(self, path: Path) -> None:
        file = path / REPORT
        try:
            raw = read_json(file.read_text(encoding="utf-8"), str(file))
        except OSError as error:
            raise ArtifactError(f"{file}: cannot be read ({error})") from error
        callers = {kernel["name"]: kernel["case_of"] for kernel in raw["kernels"]}
        self._operations: dict[str, dict[str, Any]] = {}
        for operation in raw["operations"]:
            self._operations.setdefault(operation["kernel"], operation)
        for name, caller in callers.items():
            if caller in self._operations:
                self._operations.setdefault(name, self._operations[caller])
        self._samples = {(each["rows"], each["positions"]): each["name"] for each in raw["samples"]}
        self._sample: str | None = None

    @property
    def decoded(self) -> int:
        """Length of the shortest sequence of which the report estimates the last token."""
        return min((length for rows, length in self._samples if rows == 1), default=64)

    def set_size(self, rows: int, positions: int) -> None:
        """State the rows of the step that runs next, and the length of its sequence."""
        self._sample = self._samples.get((rows, positions))

    @property
    def types(self) -> dict[str, tuple[str, ...]]:
        """MLIR types of the results of each kernel, by kernel name."""
        return {name: tuple(each["results"]) for name, each in self._operations.items()}

    def result(self, check: Check) -> KernelResult:
        """Return the result of a check, with the report's estimate beside it."""
        operation = self._operations.get(check.kernel, {})
        sample = operation.get("samples", {}).get(self._sample, {})
        time = operation.get("time") or sample.get("time") or {}
        model = time.get("seconds")
        return KernelResult(
            name=check.kernel,
            operation=operation.get("name", ""),
            arguments={
                "workgroups": check.workgroups,
                "workgroup": check.workgroup,
                "buffer_bytes": check.buffers,
                "constants": check.constants,
            },
            types=check.comparison.types,
            compared_bytes=check.comparison.bytes,
            error=check.comparison.error,
            bound=check.comparison.bound,
            agrees=check.comparison.agrees,
            seconds=check.times.seconds,
            warm_seconds=check.times.warm,
            model=time.get("model"),
            model_seconds=model,
            ratio=check.times.seconds / model if model else None,
        )


def device_uri(simulated: bool, index: int | None) -> str | None:
    """Return the IREE device URI for the whole run; None for the default device."""
    if simulated:
        return SIMULATOR
    return None if index is None else f"hip://{index}"


__all__ = ["SimulatedModel", "Verification", "device_uri", "simulated_library", "verify"]
