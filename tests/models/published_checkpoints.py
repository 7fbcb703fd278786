"""Small random checkpoints with the configs, names and layouts of published ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tests.models.published_configs import (
    GPT_OSS,
    LAYERS,
    LLAMA,
    MISTRAL3,
    QWEN3,
    QWEN3_MOE,
    QWEN3_VL,
    Json,
    compressed,
    modelopt,
    quark,
)
from tests.models.stored_weights import (
    Store,
    compressed_mxfp4,
    compressed_nvfp4,
    fp8_of_tensor,
    fp8_of_tiles,
    int4_of_groups,
    int4_of_large_groups,
    int8_of_groups,
    int8_of_rows,
    modelopt_nvfp4,
    quark_mxfp4,
)

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A checkpoint on the hub, `model`, whose config and names this one has.

    `stores`: how the layers whose names match the pattern are stored, the first one that does.
    `config`, `quantization`: config.json and its quantization_config, if it has one; `beside`:
    hf_quant_config.json.
    `names`: what parts of names are called in the file. `extra`: tensors that the program does not
    read, made of those that it reads. `notes`: what the notes of the artifact must say.
    `packed`: what the manifest and the report say of the weights whose names match the pattern, and
    the bytes of a row of so many elements in the archive.
    """

    model: str
    config: Json
    stores: Mapping[str, Store]
    quantization: Json | None
    beside: Json | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    extra: Callable[[Tensors], Tensors] = lambda plain: {}
    notes: tuple[str, ...] = ()
    packed: Mapping[str, tuple[str, Callable[[int], float]]] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16


def caches(form: str, *parts: str, shape: tuple[int, ...] = ()) -> Tensors:
    """Scales of the caches of all layers, under names of the form `form`."""
    return {
        form.format(layer=layer, part=part): torch.full(shape, 0.03 + 0.01 * number)
        for layer in range(LAYERS)
        for number, part in enumerate(parts)
    }


ATTENTION = r".*self_attn\.[qkvo]_proj"
MLP = r".*mlp\.(experts\.\d+\.)?(gate|up|down|gate_up)_proj"
LINEAR = f"{ATTENTION}|{MLP}"

_LAYER = "model.layers.{layer}.self_attn."
_FP8_CACHE = rf"key/value cache is f8_e4m3.*{LAYERS} layers.*the cache of this program is f32"

#: fp8 and int8 with a factor a row; the same and int4 with an f32 for each 32, 64 or 128 elements.
FP8_ROWS = ("f8E4M3FN", lambda k: k + 4)
INT8_ROWS = ("i8", lambda k: k + 4)
_FP8_SQUARES = ("f8E4M3FN with f32 per 64", lambda k: k + k / 64 * 4)
INT4_GROUPS = ("i4 with f32 per 32", lambda k: k / 2 + k / 32 * 4)
INT4_LARGE_GROUPS = ("i4 with f32 per 128", lambda k: k / 2 + k / 128 * 4)
INT8_GROUPS = ("int8", lambda k: k + k / 32 * 4)

_WIDE = {"hidden_size": 128, "intermediate_size": 256}

_NVIDIA_LLAMA = modelopt(["lm_head"])
_NVIDIA_MOE = modelopt(
    ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(LAYERS))], cache=True
)
#: By a short name.
PUBLISHED: dict[str, Published] = {
    "amd-llama-mxfp4": Published(
        model="amd/Llama-3.3-70B-Instruct-MXFP4-Preview",
        config=LLAMA,
        quantization=quark(["lm_head"], cache=True),
        stores={LINEAR: quark_mxfp4},
        extra=lambda plain: caches(_LAYER + "{part}_proj.output_scale", "k", "v"),
        notes=(_FP8_CACHE,),
    ),
    "amd-qwen3-moe-mxfp4": Published(
        model="amd/Qwen3-235B-A22B-Instruct-2507-MXFP4",
        config=QWEN3_MOE,
        quantization=quark(["re:.*self_attn.*", "*mlp.gate", "lm_head"]),
        stores={MLP: quark_mxfp4},
    ),
    "amd-gpt-oss": Published(
        model="amd/gpt-oss-20b-MoE-Quant-W-MXFP4-A-FP8-KV-FP8",
        config=GPT_OSS,
        quantization=quark(["*self_attn*", "*router*", "lm_head"], inputs="fp8_e4m3", cache=True),
        stores={MLP: quark_mxfp4},
        extra=lambda plain: caches(_LAYER + "{part}_proj.output_scale", "k", "v", shape=(1,)),
        notes=(_FP8_CACHE,),
    ),
    "nvidia-llama-nvfp4": Published(
        model="nvidia/Llama-3.3-70B-Instruct-NVFP4",
        config=LLAMA,
        quantization=_NVIDIA_LLAMA[1],
        beside=_NVIDIA_LLAMA[0],
        stores={LINEAR: modelopt_nvfp4},
        extra=lambda plain: {
            f"model.layers.{n}.self_attn.{part}_proj.{part}_scale": torch.tensor(0.03)
            for n in range(LAYERS)
            for part in "kv"
        },
        notes=(_FP8_CACHE,),
    ),
    "nvidia-qwen3-moe-nvfp4": Published(
        model="nvidia/Qwen3-30B-A3B-NVFP4",
        config=QWEN3_MOE,
        quantization=_NVIDIA_MOE[1],
        beside=_NVIDIA_MOE[0],
        stores={LINEAR: modelopt_nvfp4},
        # Scales that are 1 are not written.
        notes=(r"key/value cache is f8_e4m3, and has no scales",),
    ),
    "redhat-llama-nvfp4": Published(
        model="RedHatAI/Llama-3.3-70B-Instruct-NVFP4",
        config=LLAMA,
        quantization=compressed({"nvfp4-pack-quantized": ["Linear"]}, ["lm_head"], cache=True),
        stores={LINEAR: compressed_nvfp4},
        extra=lambda plain: {
            name: scale.bfloat16()
            for name, scale in caches(_LAYER + "{part}_scale", "k", "v", shape=(1,)).items()
        },
        notes=(_FP8_CACHE,),
    ),
    "redhat-qwen3-nvfp4": Published(
        model="RedHatAI/Qwen3-8B-NVFP4",
        config=QWEN3,
        quantization=compressed({"nvfp4-pack-quantized": ["Linear"]}, ["lm_head"]),
        stores={LINEAR: compressed_nvfp4},
    ),
    "nm-qwen3-moe-mxfp4a16": Published(
        model="nm-testing/Qwen3-30B-A3B-MXFP4A16",
        config=QWEN3_MOE,
        quantization=compressed(
            {"mxfp4-pack-quantized": ["Linear"]}, ["lm_head", "re:.*mlp.gate$"]
        ),
        stores={LINEAR: compressed_mxfp4},
    ),
    "redhat-mistral-small-nvfp4": Published(
        model="RedHatAI/Mistral-Small-3.2-24B-Instruct-2506-NVFP4",
        config=MISTRAL3,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        ),
        stores={rf"language_model\.({LINEAR})": compressed_nvfp4},
        notes=(r"its language model, a mistral.*not compiled: \d+ tensors of .*projector.*vision",),
    ),
    "redhat-qwen3-vl-nvfp4": Published(
        model="RedHatAI/Qwen3-VL-8B-Instruct-NVFP4",
        config=QWEN3_VL,
        quantization=compressed(
            {"nvfp4-pack-quantized": ["Linear"]},
            ["re:.*lm_head", "re:visual.*", "re:model.visual.*"],
        ),
        stores={rf"model\.language_model\.({LINEAR})": compressed_nvfp4},
        notes=(
            r"its language model, a qwen3, is compiled; not compiled: \d+ tensors of model.vis",
        ),
    ),
    "qwen3-fp8": Published(
        model="Qwen/Qwen3-8B-FP8",
        config={**QWEN3, "hidden_size": 192, "intermediate_size": 320},
        quantization={
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": [
                "lm_head",
                "model.layers.0.input_layernorm",
                "model.layers.0.post_attention_layernorm",
                "model.layers.0.self_attn.v_proj",
            ],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        stores={r"(?!.*v_proj)" + f"(?:{LINEAR})": fp8_of_tiles},
        notes=(r"6 weights are f8_e4m3 .*: they do not meet activations in f8_e4m3",),
        # Of 128 x 128 elements, in rows of 128 those are a factor of the row.
        packed={"self_attn.o_proj": FP8_ROWS, "self_attn.q_proj|mlp": _FP8_SQUARES},
    ),
    "kimi-int4": Published(
        model="moonshotai/Kimi-K2-Thinking, with experts of Qwen3",
        config=QWEN3_MOE,
        quantization=compressed(
            {"pack-quantized": ["Linear"]},
            [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
                "re:.*mlp.gate",
            ],
        ),
        stores={MLP: int4_of_groups},
        packed={"experts": INT4_GROUPS},
    ),
    "redhat-llama-w4a16": Published(
        model="RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
        config={**LLAMA, **_WIDE},
        quantization=compressed({"pack-quantized, groups of 128": ["Linear"]}, ["lm_head"]),
        stores={LINEAR: int4_of_large_groups},
        packed={"self_attn|mlp": INT4_LARGE_GROUPS},
    ),
    "nm-llama-w8a16": Published(
        model="nm-testing/tinyllama-w8a16-dense, with groups",
        config=LLAMA,
        quantization=compressed({"pack-quantized, int8": ["Linear"]}, ["lm_head"]),
        stores={LINEAR: int8_of_groups},
        packed={"self_attn|mlp": INT8_GROUPS},
    ),
    "redhat-llama-w8a8": Published(
        model="RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
        config=LLAMA,
        quantization=compressed({"int-quantized": ["Linear"]}, ["lm_head"]),
        stores={LINEAR: int8_of_rows},
        notes=(r"7 weights are i8 .*: they do not meet activations in i",),
        packed={"self_attn|mlp": INT8_ROWS},
    ),
    "redhat-llama-fp8": Published(
        model="RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",
        config=LLAMA,
        quantization=compressed({"float-quantized, static": ["Linear"]}, ["lm_head"]),
        stores={LINEAR: fp8_of_tensor},
        notes=(r"7 weights are f8_e4m3 .*: they do not meet activations in f8_e4m3",),
        packed={"self_attn|mlp": FP8_ROWS},
    ),
    "qwen3-moe-fp8": Published(
        model="Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
        config={**QWEN3_MOE, "hidden_size": 192, "moe_intermediate_size": 192},
        quantization={
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        stores={LINEAR: fp8_of_tiles},
        packed={"self_attn.q_proj|mlp.experts": _FP8_SQUARES},
    ),
}
