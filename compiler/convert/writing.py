"""Writes the files of a converted checkpoint: headers first, then the tensors, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mxc.compiler.checkpoints.dialects.gguf import NAME as GGUF
from mxc.compiler.checkpoints.files.safetensors import SINGLE
from mxc.compiler.convert.gguf_header import header
from mxc.compiler.convert.plan import ConversionPlan, ConvertedTensor
from mxc.compiler.pieces.piece import Piece, PieceOutput, chunks, ranges
from mxc.compiler.pieces.run import Runner
from mxc.compiler.quantize.outputs import QuantizedTensor
from mxc.compiler.quantize.write import layout

#: Name of the file of a GGUF conversion until it is complete.
GGUF_FILE = "model.gguf"

#: Key of the safetensors metadata that says the dialect, and that `mxc convert` wrote the file.
CONVERTED = "mxc.convert"

#: Largest number of tensor bytes in one safetensors file, unless one tensor is larger.
_SHARD = 4 << 30

#: Called with the bytes written, the total, and the name of the last tensor.
Progress = Callable[[int, int, str], None]


class ConvertedFiles:
    """The files of a plan, in GGUF or safetensors, and the computation of their pieces of rows."""

    def __init__(self, plan: ConversionPlan, dialect: str) -> None:
        """Lay out the files; no tensor is read."""
        self._tensors = plan.tensors
        #: Header and size of each file.
        self.files: dict[str, tuple[bytes, int]] = {}
        #: File of each tensor.
        self.weight_map: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        if dialect == GGUF:
            head, starts, size = header(plan)
            names = [tensor.name for tensor in plan.tensors]
            self._add(GGUF_FILE, head, dict(zip(names, starts, strict=True)), size)
            return
        metadata = {"format": "pt", CONVERTED: dialect, **plan.metadata}
        shards = list(_shards(plan.tensors))
        for index, shard in enumerate(shards, 1):
            one = len(shards) == 1
            name = SINGLE if one else f"model-{index:05}-of-{len(shards):05}.safetensors"
            described = [QuantizedTensor(t.name, t.dtype, t.shape) for t in shard]
            self._add(name, *layout(described, metadata))

    @property
    def total(self) -> int:
        """Number of bytes of all tensors."""
        return sum(tensor.bytes for tensor in self._tensors)

    def write(self, runner: Runner, progress: Progress) -> None:
        """Write all files with `runner`; `progress` is called in this thread."""
        for name, (head, size) in self.files.items():
            runner.create(name, size, head)
        done, whole = 0, self.total
        for piece, _ in runner.run(self._pieces()):
            done += piece.size
            progress(done, whole, self._tensors[piece.tensor].name)

    def compute(self, piece: Piece, output: PieceOutput) -> None:
        """Write some rows of a tensor."""
        tensor = self._tensors[piece.tensor]
        size = _row_bytes(tensor)
        for start, count in chunks(piece, size):
            data = tensor.read(start, count)
            if data.size != count * size:
                raise AssertionError(f"{tensor.name}: {data.size} bytes of {count * size}")
            at = self._offsets[tensor.name] + start * size
            output.put(self.weight_map[tensor.name], at, data)

    def _add(self, file: str, head: bytes, offsets: dict[str, int], size: int) -> None:
        self.files[file] = head, size
        self._offsets |= offsets
        self.weight_map |= dict.fromkeys(offsets, file)

    def _pieces(self) -> Iterator[Piece]:
        for number, tensor in enumerate(self._tensors):
            size = _row_bytes(tensor)
            for start, count in ranges(tensor.rows, size):
                yield Piece("rows", number, start, count, count * size)


def _row_bytes(tensor: ConvertedTensor) -> int:
    return tensor.bytes // max(1, tensor.rows)


def _shards(tensors: Sequence[ConvertedTensor]) -> Iterator[list[ConvertedTensor]]:
    shard: list[ConvertedTensor] = []
    size = 0
    for tensor in tensors:
        if shard and size + tensor.bytes > _SHARD:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.bytes
    yield shard
