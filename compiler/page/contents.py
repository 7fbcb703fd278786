"""The data of a report page as JSON, and its long texts, which the page opens on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mxc.artifact.manifest import BLOCKS, REPORT, SCALES, Manifest, read_json, read_manifest
from mxc.artifact.parameter_archive import ArchiveEntry, read_archive
from mxc.compiler.report import OperationCost, Report, ReportOperation, Reports, ReportSample
from mxc.compiler.report.listings import listings
from mxc.errors import ArtifactError
from mxc.targets.amd import gpu

#: Number of bytes of scales that are read at once.
_PIECE = 1 << 24
_ARCHIVES = ".irpa"
#: Block size of E8M0 scales; scales of other block sizes are floats.
_BLOCK = 32
#: How the names of kernels of mxc begin; the others are of IREE's code generator.
_OWN = "mxc_"


@dataclass(frozen=True)
class KernelTexts:
    """The assembly files of a level, and the nests of its kernels by name."""

    assembly: Sequence[str]
    nests: Mapping[str, str]


class Texts(list[str]):
    """The long texts of a page, without duplicates."""

    def number(self, text: str) -> int:
        """Return the index of `text`, which is appended if it is new."""
        found = self._numbers.setdefault(text, len(self))
        if found == len(self):
            self.append(text)
        return found

    def __init__(self) -> None:
        """Start without texts."""
        super().__init__()
        self._numbers: dict[str, int] = {}


def contents(
    artifact: Path, name: str, code: Mapping[str, KernelTexts], dump: Path | None
) -> tuple[dict[str, Any], Texts]:
    """Return the data of the page, and the texts that its numbers refer to."""
    manifest = read_manifest(artifact)
    file = artifact / REPORT
    try:
        raw = read_json(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from error
    reports = Reports.from_dict(raw, str(file))
    texts = Texts()
    absent = []
    if not code:
        absent.append("nests and assembly of kernels: mxc compile ... --html FILE puts them here")
    if dump is None:
        absent.append("the IR after each pass: mxc compile ... --dump-ir DIR --html FILE")
    return {
        "name": name,
        "facts": _facts(manifest),
        "notes": list(manifest.notes),
        "absent": absent,
        "levels": [
            _level(level, report, code.get(level), texts)
            for level, report in reports.levels.items()
        ],
        "weights": _weights(artifact, manifest),
        "memory": _memory(manifest),
        "ir": [] if dump is None else _stages(dump, texts),
    }, texts


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    target, model = manifest.target, manifest.model
    facts = [
        ("target", f"{target.name} ({target.chip})" if target.chip else target.name),
        ("activations", manifest.activations),
        ("functions", ", ".join(manifest.functions)),
        ("versions", f"mxc {manifest.mxc_version}, IREE {manifest.iree_version}"),
    ]
    if model is not None:
        facts.insert(0, ("architecture", model.architecture))
        facts.append(("sequence", f"up to {model.max_sequence_length} tokens"))
        kinds = ", ".join(dict.fromkeys(page.format or page.dtype for page in model.pages))
        facts.append(("KV cache", f"{kinds}, {model.bytes_per_token} bytes per token"))
    return facts


def _memory(manifest: Manifest) -> list[tuple[str, int]]:
    """Return (part, bytes): files of the artifact, and the KV cache of the longest sequence."""
    parts = [
        ("weights" if name.endswith(_ARCHIVES) else name, record.bytes)
        for name, record in manifest.files.items()
    ]
    if manifest.model is not None:
        longest = manifest.model.max_sequence_length * manifest.model.bytes_per_token
        parts.append(("KV cache of the longest sequence", longest))
    return sorted(parts, key=lambda part: -part[1])


def _level(name: str, report: Report, code: KernelTexts | None, texts: Texts) -> dict[str, Any]:
    assembly, nests = (code.assembly, code.nests) if code is not None else ((), {})
    listed = {each.kernel: each.text for each in listings(report, assembly)}
    refused = {kernel.name for kernel in report.spilling}
    plans: dict[str, str | None] = {}
    for matmul in report.matmuls:
        plans.setdefault(matmul.kernel, matmul.schedule or matmul.plan)
    kernels = []
    for kernel in report.kernels:
        operations = report.calls.get(kernel.name, [])
        text, nest = listed.get(kernel.name), nests.get(kernel.entry)
        kernels.append(
            {
                **asdict(kernel),
                "case": kernel.entry,
                "operations": [f"{each.function}: {each.name}" for each in operations],
                "costs": _costs(operations, report.samples),
                "refused": kernel.name in refused,
                "plan": plans.get(kernel.entry),
                "own": kernel.entry.startswith(_OWN),
                "nest": None if nest is None else texts.number(nest),
                "text": None if text is None else texts.number(text),
            }
        )
    return {
        "name": name,
        "target": report.target,
        "listed": code is not None,
        "matmuls": [asdict(each) for each in report.matmuls],
        "kernels": kernels,
        "functions": [asdict(each) for each in report.functions],
        "operations": [asdict(each) for each in report.operations],
        "samples": [
            {**asdict(each), **_total(report.operations, each.name)} for each in report.samples
        ],
        "findings": list(report.findings),
        "roof": _roof(report.target),
    }


def _costs(
    operations: Sequence[ReportOperation], samples: Sequence[ReportSample]
) -> dict[str, Any]:
    """Return what all calls of a kernel cost by sample; under "" if sizes are static."""
    if any(each.samples for each in operations):
        return {each.name: _total(operations, each.name) for each in samples}
    return {"": _summed([*operations])}


def _total(operations: Sequence[ReportOperation], sample: str) -> dict[str, Any]:
    """Return launches, bytes, flops and seconds of operations at a sample."""
    return _summed([each.samples[sample] for each in operations if sample in each.samples])


def _summed(costs: Sequence[ReportOperation | OperationCost]) -> dict[str, Any]:
    times = [each.time.seconds for each in costs if each.time is not None]
    return {
        "launches": len(costs),
        "bytes": sum(each.bytes_moved or 0 for each in costs),
        "flops": sum(each.flops or 0 for each in costs),
        "seconds": sum(times) if times else None,
    }


def _roof(target: str) -> dict[str, Any] | None:
    """Return the peak rates of a GPU from its record; None for a CPU, whose record has none."""
    found = gpu(target)
    if found is None:
        return None
    cores = found.units * found.unit.simds * found.clock
    peaks = {
        each.mnemonic: 2 * each.m * each.n * each.k / each.clocks * cores
        for each in found.matrix.instructions
        if each.clocks
    }
    return {"product": found.product, "bandwidth": found.memory_bandwidth, "peaks": peaks}


def _weights(artifact: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """Return each weight with its bytes, and a histogram of its E8M0 scales."""
    entries: dict[str, tuple[Path, ArchiveEntry]] = {}
    for archive in manifest.files:
        file = artifact / archive
        if archive.endswith(_ARCHIVES) and file.is_file():
            for key, entry in read_archive(file).items():
                entries.setdefault(key, (file, entry))
    rows = []
    for name, record in manifest.weights.items():
        own = [entries[key] for key in (name, name + BLOCKS, name + SCALES) if key in entries]
        counts = None
        if name + SCALES in entries and record.block == _BLOCK:
            file, entry = entries[name + SCALES]
            counts = _histogram(file, entry.offset, entry.bytes)
        rows.append(
            {
                "name": name,
                "format": record.format,
                "shape": list(record.shape),
                "layout": record.layout,
                "recipe": record.recipe,
                "sqnr": record.sqnr,
                "bytes": sum(entry.bytes for _, entry in own),
                "scales": counts,
            }
        )
    return rows


def _histogram(file: Path, offset: int, size: int) -> list[tuple[int, int]]:
    """Return (byte, count) for each byte that occurs in a part of a file."""
    counts = np.zeros(256, np.int64)
    whole = np.memmap(file, np.uint8, "r", offset, (size,)) if size else np.zeros(0, np.uint8)
    for start in range(0, size, _PIECE):
        counts += np.bincount(whole[start : start + _PIECE], minlength=256)
    return [(int(byte), int(counts[byte])) for byte in np.flatnonzero(counts)]


def _stages(dump: Path, texts: Texts) -> list[dict[str, Any]]:
    """Return the files of --dump-ir in the order in which they were written."""
    found = []
    for file in sorted(dump.rglob("*.mlir")):
        text = file.read_text(encoding="utf-8", errors="replace")
        found.append(
            {
                "name": file.relative_to(dump).with_suffix("").as_posix(),
                "lines": text.count("\n"),
                "text": texts.number(text),
            }
        )
    return found
