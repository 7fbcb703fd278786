"""A model to be compiled: a checkpoint that was opened, with its options.

Whatever the architecture, the road asks for the same four things: the program, what to pack, what
the manifest says of the weights and of the model.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.gpt_oss import GENERATION_CONFIG, GptOss, read_gpt_oss
from mxc.compiler.checkpoints.gpt_oss_pack import (
    Dense,
    plan_tensors,
    plan_weights,
    require_whole_blocks,
)
from mxc.compiler.checkpoints.safetensors_files import CONFIG, INDEX
from mxc.compiler.models.gpt_oss import GptOssBuilder, generated_tensors
from mxc.compiler.models.options import Options, choose
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.quantised import Loss
from mxc.dialects.manifest import (
    CHAT_TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelRecord,
    TensorType,
    WeightRecord,
)
from mxc.dialects.recipes import scale_recipe

#: Files of a checkpoint that generation needs; the artifact gets copies.
TEXT_FILES = (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE)


@dataclass(frozen=True)
class Model:
    """A gpt-oss checkpoint with the options that it is compiled with."""

    folder: Path
    source: GptOss
    options: Options
    notes: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read beside the tensors: what the model is, and its text."""
        names = (CONFIG, GENERATION_CONFIG, INDEX, *TEXT_FILES)
        return tuple(file for name in names if (file := self.folder / name).is_file())

    def program(self, *, grouped: bool) -> bytes:
        """The module as MLIR bytecode; no weight is in it. `grouped`: see models/experts.py."""
        tensors = self.source.checkpoint.tensors
        dtypes = {name: record.dtype for name, record in tensors.items()}
        module = GptOssBuilder(self.source.config, dtypes, self.options, grouped=grouped).build()
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def pack_items(self, panels: Mapping[str, str]) -> tuple[PackItem, ...]:
        """Every tensor of the archive, those that are computed included.

        `panels`: the panel layout of those that kernels read so, by name.
        """
        return plan_tensors(self.source, self._generated(), panels, _dense(self.options))

    def weights(
        self, panels: Mapping[str, str], losses: Mapping[str, Loss] | None = None
    ) -> dict[str, WeightRecord]:
        """What the manifest says of every tensor; `losses`: what quantising changed, by key."""
        made = self._generated()
        return plan_weights(self.source, made, panels, _dense(self.options), losses)

    def _generated(self) -> dict[str, NDArray[np.float32]]:
        return generated_tensors(self.source.config, self.options)

    def record(self) -> ModelRecord:
        """What generation needs to know."""
        c, o = self.source.config, self.options
        shape = (2 * c.num_hidden_layers, o.capacity, c.num_key_value_heads, c.head_dim)
        return ModelRecord(
            architecture="gpt_oss",
            vocab_size=c.vocab_size,
            max_sequence_length=o.max_sequence_length,
            prefill_chunk=o.prefill_chunk,
            cache=TensorType(shape=shape, dtype=o.floats),
            eos_tokens=self.source.eos_tokens,
            bos_token=c.bos_token_id,
            pad_token=c.pad_token_id,
            batches=o.batches,
        )


def open_model(
    folder: Path,
    *,
    max_sequence_length: int | None = None,
    prefill_chunk: int | None = None,
    activations: str | None = None,
    quantize_dense: str | None = None,
    recipe: str | None = None,
    batch: Sequence[int] | None = None,
) -> Model:
    """Open the checkpoint in `folder` and settle the options; reads headers only.

    Raises CheckpointError for a checkpoint that cannot be read, and for options that it cannot
    have.
    """
    source = read_gpt_oss(folder)
    dense = {r.dtype for r in source.checkpoint.tensors.values() if r.dtype != "U8"}
    options, notes = choose(
        max_sequence_length,
        prefill_chunk,
        activations,
        quantize_dense,
        recipe,
        batch or (),
        longest=source.config.max_position_embeddings,
        dense=dense,
    )
    if (quantised := _dense(options)) is not None:
        require_whole_blocks(source, quantised)
    return Model(folder, source, options, notes)


def _dense(options: Options) -> Dense | None:
    if options.dense_format is None or options.recipe is None:
        return None
    return Dense(format=options.dense_format, recipe=scale_recipe(options.recipe))
