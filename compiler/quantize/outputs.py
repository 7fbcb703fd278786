"""The dialects that `mxc quantize` writes: names, dtypes and shapes of the parts, and the config.

The default rounding of ties is that of the dialect's own library. Sources: amd-quark 0.13
torch/utils/pack.py and torch/quantization/config/config.py; compressed-tensors 0.20 compressors/
and quantization/quant_scheme.py; transformers 5.23 integrations/mxfp4.py; nvidia-modelopt 0.47
torch/export/quant_utils.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.errors import FormatError
from mxc.formats.formats import BlockFormat
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.rounding import Ties

#: safetensors dtypes of 8-bit elements; narrower elements are packed in U8.
EIGHT_BITS = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2", "int8": "I8"}


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor to write: `dtype` is a safetensors name, `shape` in elements of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """The tensors of a quantized weight. `transposed`: the source is [.., in, out], the parts are
    not."""

    elements: QuantizedTensor
    scales: QuantizedTensor
    tensor_scale: QuantizedTensor | None = None
    transposed: bool = False


class OutputDialect(ABC):
    """A dialect to write. `formats` are the names of FORMATS that it can hold."""

    name: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    ties: ClassVar[Ties] = Ties.EVEN
    #: A negative number that rounds to zero keeps its sign.
    negative_zero: ClassVar[bool] = True
    #: The tensor scale of nvfp4 is stored as its reciprocal.
    reciprocal: ClassVar[bool] = False
    #: All experts of a layer are one tensor; otherwise each is a layer of its own.
    stacks: ClassVar[bool] = False
    #: Values of `model_type` for which the gate and up projections of an expert stay one weight.
    fused_gate_up: ClassVar[tuple[str, ...]] = ()
    #: Dialect of `mxc convert` that the written checkpoint is converted to; "" for none.
    converted: ClassVar[str] = ""

    def check(self, format: BlockFormat) -> None:
        """Raise FormatError for a format that the dialect cannot express."""
        if format.name not in self.formats:
            able = [each.name for each in OUTPUTS.values() if format.name in each.formats]
            raise FormatError(
                f"the dialect {self.name} holds {', '.join(self.formats)}, wanted {format}; "
                f"choose --dialect {' or '.join(able)}"
            )

    def zero_scale(self, recipe: ScaleRecipe | None) -> int:
        """Return the scale byte of a block of zeros, whose value does not depend on it."""
        return 0

    @abstractmethod
    def parts(self, weight: TensorRecord, format: BlockFormat) -> Parts | None:
        """Return the tensors of a weight; None for a tensor that the dialect cannot hold
        quantized."""

    @abstractmethod
    def config(
        self, format: BlockFormat, recipe: ScaleRecipe | None, kept: Sequence[str]
    ) -> dict[str, Any]:
        """Return `quantization_config`; `kept` are the modules with unquantized weights."""

    def files(self, format: BlockFormat, kept: Sequence[str]) -> dict[str, Any]:
        """Return additional JSON files by name."""
        return {}


def _matrix(weight: TensorRecord) -> bool:
    return len(weight.shape) == 2 and weight.name.endswith(".weight")


def _elements(name: str, weight: TensorRecord, format: BlockFormat) -> QuantizedTensor:
    rows, depth = weight.shape
    dtype = EIGHT_BITS.get(format.element.name, "U8")
    return QuantizedTensor(name, dtype, (rows, format.packed_bytes(depth)))


class Quark(OutputDialect):
    """AMD Quark: packed `X.weight` and `X.weight_scale`, with the recipe in the config."""

    name = "quark"
    formats: ClassVar[tuple[str, ...]] = (
        "mxfp4",
        "mxfp6e2m3",
        "mxfp6e3m2",
        "mxfp8e4m3",
        "mxfp8e5m2",
        "mxint8",
    )
    negative_zero = False
    fused_gate_up = ("gpt_oss",)
    _dtypes: ClassVar = {
        "mxfp4": "fp4",
        "mxfp6e2m3": "fp6_e2m3",
        "mxfp6e3m2": "fp6_e3m2",
        "mxfp8e4m3": "fp8_e4m3",
        "mxfp8e5m2": "fp8_e5m2",
        "mxint8": "int8",
    }

    def zero_scale(self, recipe: ScaleRecipe | None) -> int:
        """Return the byte of 2^-126 for even, and of Quark's epsilon 2^-23 for floor and ceil."""
        quark = {ScaleRecipe.EVEN: 1, ScaleRecipe.FLOOR: 104, ScaleRecipe.CEIL: 104}
        return 0 if recipe is None else quark.get(recipe, 0)

    def parts(self, weight: TensorRecord, format: BlockFormat) -> Parts | None:
        """Return the tensors of a linear layer's weight."""
        if not _matrix(weight):
            return None
        rows, depth = weight.shape
        scales = QuantizedTensor(f"{weight.name}_scale", "U8", (rows, format.blocks(depth)))
        return Parts(_elements(weight.name, weight, format), scales)

    def config(
        self, format: BlockFormat, recipe: ScaleRecipe | None, kept: Sequence[str]
    ) -> dict[str, Any]:
        """Return a config for quantized weights and unquantized activations."""
        weight = {
            "dtype": self._dtypes[format.name],
            "is_dynamic": False,
            "qscheme": "per_group",
            "ch_axis": -1,
            "group_size": format.block,
            "symmetric": None,
            "round_method": "half_even",
            "scale_type": "float",
            "scale_format": "e8m0",
            "scale_calculation_mode": None if recipe is None else recipe.value,
            "mx_element_dtype": None,
            "observer_cls": "PerBlockMXObserver",
        }
        layer = {"weight": weight, "input_tensors": None, "output_tensors": None, "bias": None}
        return {
            "quant_method": "quark",
            "quant_mode": "eager_mode",
            "global_quant_config": layer,
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "kv_cache_quant_config": {},
            "softmax_quant_spec": None,
            "exclude": list(kept),
            "export": {
                "kv_cache_group": [],
                "min_kv_scale": 0.0,
                "pack_method": "reorder",
                "weight_format": "real_quantized",
                "weight_merge_groups": None,
            },
        }


class CompressedTensors(OutputDialect):
    """compressed-tensors: `X.weight_packed` (8 bits: `X.weight`) and `X.weight_scale`."""

    name = "compressed-tensors"
    formats = ("mxfp4", "mxfp6e2m3", "mxfp8e4m3", "nvfp4")
    reciprocal = True
    _containers: ClassVar = {
        "mxfp4": "mxfp4-pack-quantized",
        "mxfp6e2m3": "mxfp6-pack-quantized",
        "mxfp8e4m3": "mxfp8-quantized",
        "nvfp4": "nvfp4-pack-quantized",
    }

    def parts(self, weight: TensorRecord, format: BlockFormat) -> Parts | None:
        """Return the tensors of a linear layer's weight."""
        if not _matrix(weight):
            return None
        rows, depth = weight.shape
        packed = weight.name if format.element.bits == 8 else f"{weight.name}_packed"
        dtype = "F8_E4M3" if format.tensor_scale else "U8"
        whole = (
            QuantizedTensor(f"{weight.name}_global_scale", "F32", (1,))
            if format.tensor_scale
            else None
        )
        return Parts(
            _elements(packed, weight, format),
            QuantizedTensor(f"{weight.name}_scale", dtype, (rows, format.blocks(depth))),
            whole,
        )

    def config(
        self, format: BlockFormat, recipe: ScaleRecipe | None, kept: Sequence[str]
    ) -> dict[str, Any]:
        """Return a config for quantized weights and unquantized activations, which cannot express
        recipes."""
        container = self._containers[format.name]
        scale = "torch.float8_e4m3fn" if format.tensor_scale else "torch.uint8"
        weights = {
            "num_bits": format.element.bits,
            "type": "float",
            "strategy": "tensor_group" if format.tensor_scale else "group",
            "group_size": format.block,
            "symmetric": True,
            "dynamic": False,
            "scale_dtype": scale,
            "zp_dtype": scale,
        }
        group = {
            "targets": ["Linear"],
            "format": container,
            "weights": weights,
            "input_activations": None,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": container,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(kept),
            "kv_cache_scheme": None,
        }


class Modelopt(OutputDialect):
    """nvfp4 of modelopt: `X.weight`, `X.weight_scale` and a multiplying tensor scale."""

    name = "modelopt"
    formats = ("nvfp4",)

    def parts(self, weight: TensorRecord, format: BlockFormat) -> Parts | None:
        """Return the tensors of a linear layer's weight."""
        if not _matrix(weight):
            return None
        rows, depth = weight.shape
        return Parts(
            _elements(weight.name, weight, format),
            QuantizedTensor(f"{weight.name}_scale", "F8_E4M3", (rows, format.blocks(depth))),
            QuantizedTensor(f"{weight.name}_scale_2", "F32", ()),
        )

    def config(
        self, format: BlockFormat, recipe: ScaleRecipe | None, kept: Sequence[str]
    ) -> dict[str, Any]:
        """Return a config for quantized weights and unquantized activations."""
        return {"quant_method": self.name, "quant_algo": "W4A16_NVFP4", "ignore": list(kept)}

    def files(self, format: BlockFormat, kept: Sequence[str]) -> dict[str, Any]:
        """Return hf_quant_config.json."""
        said = {
            "quant_algo": "W4A16_NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": format.block,
            "exclude_modules": list(kept),
        }
        return {"hf_quant_config.json": {"producer": {"name": "mxc"}, "quantization": said}}


class GptOss(OutputDialect):
    """gpt-oss: only the weights of experts, `X_blocks` and `X_scales`.

    transformers has them as [experts, in, out]; the blocks are [experts, out, in / 32, 16].
    """

    name = "gpt-oss"
    formats = ("mxfp4",)
    stacks = True

    def parts(self, weight: TensorRecord, format: BlockFormat) -> Parts | None:
        """Return the tensors of the stacked weights of all experts of a layer."""
        stem, _, last = weight.name.rpartition(".")
        known = last in ("gate_up_proj", "down_proj") and stem.endswith(".experts")
        if not known or len(weight.shape) != 3:
            return None
        experts, depth, rows = weight.shape
        shape = (experts, rows, format.blocks(depth))
        return Parts(
            QuantizedTensor(f"{weight.name}_blocks", "U8", (*shape, format.block_bytes)),
            QuantizedTensor(f"{weight.name}_scales", "U8", shape),
            transposed=True,
        )

    def config(
        self, format: BlockFormat, recipe: ScaleRecipe | None, kept: Sequence[str]
    ) -> dict[str, Any]:
        """Return the config of the published models, which cannot express recipes."""
        return {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        }


class Gguf(Quark):
    """GGUF: quantized with ggml's rules, then converted, because one file has the whole model."""

    name = "gguf"
    formats = ("mxfp4",)
    converted = "gguf"
    #: ggml's search keeps the first of the nearest codes, and 0 precedes -0.
    ties = Ties.ZERO

    def zero_scale(self, recipe: ScaleRecipe | None) -> int:
        """Return the byte of 2^-127."""
        return 0


class Torchao(OutputDialect):
    """torchao: quantized with its rules, then converted, because its files record classes'
    attributes.

    It is written in an intermediate dialect of layers: MX as Quark, nvfp4 as modelopt.
    """

    name = "torchao"
    formats = ("mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2", "nvfp4")
    converted = "torchao"

    def parts(self, weight: TensorRecord, format: BlockFormat) -> Parts | None:
        """Return the tensors of a linear layer's weight in the intermediate dialect."""
        return self._between(format).parts(weight, format)

    def config(
        self, format: BlockFormat, recipe: ScaleRecipe | None, kept: Sequence[str]
    ) -> dict[str, Any]:
        """Return the config of the intermediate dialect."""
        return self._between(format).config(format, recipe, kept)

    def _between(self, format: BlockFormat) -> OutputDialect:
        return Modelopt() if format.tensor_scale else Quark()


#: Dialects by name; the first that holds a format is the format's default.
OUTPUTS: Mapping[str, OutputDialect] = {
    output.name: output
    for output in (Quark(), CompressedTensors(), GptOss(), Gguf(), Modelopt(), Torchao())
}


def output_dialect(name: str | None, format: BlockFormat) -> OutputDialect:
    """Return the dialect `name`, or the default of `format`.

    Raises FormatError for an unknown name, or a dialect that does not hold the format.
    """
    if name is None:
        return next(output for output in OUTPUTS.values() if format.name in output.formats)
    if name not in OUTPUTS:
        raise FormatError(f"unknown dialect {name!r}; mxc writes {', '.join(OUTPUTS)}")
    OUTPUTS[name].check(format)
    return OUTPUTS[name]
