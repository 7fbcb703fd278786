"""The files of a converted checkpoint: known headers first, then the tensors, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mxc.compiler.checkpoints.files.safetensors import SINGLE
from mxc.compiler.convert.gguf_header import header
from mxc.compiler.convert.plan import Plan, Written
from mxc.compiler.pieces.piece import Output, Piece, chunks, ranges
from mxc.compiler.pieces.run import Runner
from mxc.compiler.quantize.outputs import Tensor
from mxc.compiler.quantize.write import layout

#: The only file of a conversion to GGUF, until it gets its name.
GGUF_FILE = "model.gguf"

#: Bytes of tensors in one safetensors file.
_SHARD = 4 << 30

#: Called with the bytes that are written, of how many, and the tensor that was last.
Progress = Callable[[int, int, str], None]


class Writing:
    """The files of a plan, in GGUF or in safetensors; computes their pieces, which are rows."""

    def __init__(self, plan: Plan, *, gguf: bool) -> None:
        """Headers are made; nothing is read."""
        self._tensors = plan.tensors
        #: File -> its header, and its size.
        self.files: dict[str, tuple[bytes, int]] = {}
        #: Tensor -> its file.
        self.weight_map: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        if gguf:
            head, starts, size = header(plan)
            names = [tensor.name for tensor in plan.tensors]
            self._add(GGUF_FILE, head, dict(zip(names, starts, strict=True)), size)
            return
        shards = list(_shards(plan.tensors))
        for index, shard in enumerate(shards, 1):
            one = len(shards) == 1
            name = SINGLE if one else f"model-{index:05}-of-{len(shards):05}.safetensors"
            described = [Tensor(t.name, t.dtype, t.shape) for t in shard]
            self._add(name, *layout(described, {"format": "pt", **plan.metadata}))

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self._tensors)

    def write(self, runner: Runner, progress: Progress) -> None:
        """Write all files with `runner`; `progress` is called by this thread."""
        for name, (head, size) in self.files.items():
            runner.create(name, size, head)
        done, whole = 0, self.total
        for piece, _ in runner.run(self._pieces()):
            done += piece.size
            progress(done, whole, self._tensors[piece.tensor].name)

    def compute(self, piece: Piece, output: Output) -> None:
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
            for start, count in ranges(tensor.rows, 1, size):
                yield Piece("rows", number, start, count, count * size)


def _row_bytes(tensor: Written) -> int:
    return tensor.bytes // max(1, tensor.rows)


def _shards(tensors: Sequence[Written]) -> Iterator[list[Written]]:
    shard: list[Written] = []
    size = 0
    for tensor in tensors:
        if shard and size + tensor.bytes > _SHARD:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.bytes
    yield shard
