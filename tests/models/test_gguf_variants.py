"""What a config says beside the weights comes through GGUF: rotary scaling, windows, dense layers.

Each model is saved by transformers in float32, converted, and compiled from the GGUF. Its logits
are those of transformers, and the program and every packed byte are those of the folder.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.constants import MODEL_TENSORS, TENSOR_NAMES
from safetensors.torch import save_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import mxc
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.convert.checkpoint import ConversionResult, convert
from mxc.compiler.inspect.compare import compare_tensors
from mxc.compiler.models.model import open_model
from mxc.errors import CheckpointError

#: Share of the root mean square of all logits, as in architectures/built.py. Tokens of a sequence.
TOLERANCE, LENGTH = 2e-5, 29

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
TWO = SMALL | {"num_hidden_layers": 2}

#: Most of a sequence lies beyond the original context; nothing has its default.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 2e4, "factor": 8.0, "low_freq_factor": 1.5,
          "high_freq_factor": 5.0, "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 6.0,
        "original_max_position_embeddings": 16}  # fmt: skip
MOE = {"head_dim": 32, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 32}

#: The first layer slides, the second sees everything.
SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
#: What llama.cpp takes for the divisor of scores.
GEMMA = {"query_pre_attn_scalar": 32}

QWEN2_MOE = MOE | {"shared_expert_intermediate_size": 48}

#: Name -> transformers' config, and what convert notes about llama.cpp.
CASES: dict[str, tuple[Any, str | None]] = {
    "llama3": (transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3), None),
    "linear": (
        transformers.LlamaConfig(
            **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}
        ),
        None,
    ),
    "yarn-beta": (
        transformers.Qwen3Config(
            **SMALL, head_dim=32, rope_parameters=YARN | {"beta_fast": 8.0, "beta_slow": 2.0}
        ),
        "no beta_fast and beta_slow of qwen3",
    ),
    "yarn-attention": (
        transformers.LlamaConfig(**SMALL, rope_parameters=YARN | {"attention_factor": 0.7}),
        None,
    ),
    "yarn-mscale": (
        transformers.LlamaConfig(
            **SMALL, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.6}
        ),
        None,
    ),
    # The first layer sees everything, the second slides.
    "qwen2-window": (
        transformers.Qwen2Config(
            **TWO, use_sliding_window=True, sliding_window=6, max_window_layers=1
        ),
        "no sliding window of qwen2: beyond 6 tokens",
    ),
    # A window that no layer has.
    "qwen2-unused-window": (
        transformers.Qwen2Config(**SMALL, use_sliding_window=False, sliding_window=4096),
        None,
    ),
    "mistral-window": (
        transformers.MistralConfig(**TWO, sliding_window=7),
        "no sliding window of llama: beyond 7 tokens",
    ),
    # The shares of the chosen experts do not add up to one; the first layer has no experts.
    "qwen3-moe-dense": (
        transformers.Qwen3MoeConfig(
            **TWO, **MOE, norm_topk_prob=False, mlp_only_layers=[0], rope_parameters=LLAMA3
        ),
        "wants experts in every layer of qwen3moe",
    ),
    "cohere2": (transformers.Cohere2Config(**TWO, **SLIDING, logit_scale=0.3), None),
    "ernie4_5": (transformers.Ernie4_5Config(**SMALL, head_dim=32), None),
    # The first layer has an MLP; two experts' worth of one is shared.
    "ernie4_5_moe": (
        transformers.Ernie4_5_MoeConfig(
            **TWO,
            moe_num_experts=5,
            moe_k=3,
            moe_intermediate_size=32,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            tie_word_embeddings=True,
        ),
        None,
    ),
    "exaone4": (transformers.Exaone4Config(**TWO, **SLIDING), "no sliding window of exaone4"),
    "exaone4-full": (
        transformers.Exaone4Config(
            **SMALL, sliding_window=None, layer_types=["full_attention"], rope_parameters=LLAMA3
        ),
        None,
    ),
    "gemma2": (transformers.Gemma2Config(**TWO, **SLIDING, head_dim=32, **GEMMA), None),
    "gemma3": (
        transformers.Gemma3TextConfig(
            **TWO,
            **SLIDING,
            head_dim=32,
            **GEMMA,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        ),
        None,
    ),
    "glm4": (transformers.Glm4Config(**SMALL, head_dim=32, attention_bias=True), None),
    "glm4_moe": (
        transformers.Glm4MoeConfig(
            **TWO,
            head_dim=16,
            attention_bias=True,
            use_qk_norm=True,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_group=3,
            topk_group=2,
            n_shared_experts=1,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            routed_scaling_factor=1.7,
        ),
        None,
    ),
    "granite": (
        transformers.GraniteConfig(
            **SMALL,
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.7,
            logits_scaling=5.0,
        ),
        None,
    ),
    "minimax_m2": (
        transformers.MiniMaxM2Config(
            **TWO, head_dim=32, rotary_dim=16, num_local_experts=5, num_experts_per_tok=3
        ),
        None,
    ),
    "olmo2": (transformers.Olmo2Config(**SMALL), None),
    # Layers that slide have rotary positions without scaling.
    "olmo3": (
        transformers.Olmo3Config(
            **TWO | {"num_key_value_heads": 4},
            **SLIDING,
            rope_parameters={
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        None,
    ),
    "phi3": (
        transformers.Phi3Config(**SMALL, sliding_window=7),
        "no sliding window of phi3",
    ),
    # Sequences are longer than the original context; three of four pairs are rotated.
    "phi3-longrope": (
        transformers.Phi3Config(
            **SMALL,
            original_max_position_embeddings=16,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 16,
                "long_factor": [1.0, 1.1, 1.7, 3.5, 9.0, 20.0],
                "short_factor": [1.0, 1.0, 1.02, 1.1, 1.3, 1.5],
            },
        ),
        None,
    ),
    "qwen2_moe": (transformers.Qwen2MoeConfig(**TWO, **QWEN2_MOE), None),
    "qwen2_moe-dense": (
        transformers.Qwen2MoeConfig(**TWO, **QWEN2_MOE, mlp_only_layers=[0]),
        "wants experts in every layer of qwen2moe",
    ),
    "seed_oss": (transformers.SeedOssConfig(**SMALL, head_dim=32, attention_bias=True), None),
    # The fourth layer has no rotary positions.
    "smollm3": (
        transformers.SmolLM3Config(**SMALL | {"num_hidden_layers": 4}),
        None,
    ),
    "starcoder2": (
        transformers.Starcoder2Config(**SMALL, sliding_window=6),
        "no sliding window of starcoder2",
    ),
}


def write(folder: Path, config: Any) -> None:
    """A model in float32 whose activations keep their size from layer to layer."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    random = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() == 1:
            weight.data = (0 if name.endswith("bias") else 1) + 0.1 * draw
        else:
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    for name, buffer in model.named_buffers():
        if "correction" in name:
            buffer.data = 0.3 * torch.randn(buffer.shape, generator=random)
    model.tie_weights()
    model.float().save_pretrained(folder)


each = pytest.mark.parametrize("name", CASES)

#: Those that are compiled: of the others, the same program is the same logits.
STORED_NORMS = ("gemma2", "gemma3")
FIRST = list(CASES)[: list(CASES).index("cohere2")]
COMPILED = [name for name in FIRST if name not in ("yarn-mscale", "qwen2-unused-window")]
COMPILED += [*STORED_NORMS, "glm4_moe", "granite", "phi3-longrope"]


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], tuple[Path, ConversionResult]]]:
    """The folder of a case, with model, m.gguf and m.mxc of it, and what convert said."""
    pool = ThreadPoolExecutor(max_workers=2)

    def build(folder: Path, name: str) -> tuple[Path, ConversionResult]:
        said = convert(folder / "model", "gguf", folder / "m.gguf")
        if name in COMPILED:
            options = dict[str, Any](activations="f32", max_sequence_length=LENGTH, listing=False)
            mxc.compile(folder / "m.gguf", "cpu", folder / "m.mxc", **options)
        return folder, said

    futures: dict[str, Future[tuple[Path, ConversionResult]]] = {}
    for name, (config, _) in CASES.items():
        folder = tmp_path_factory.mktemp(name)
        # While transformers loads a model on one thread it ties no weights on another.
        write(folder / "model", config)
        futures[name] = pool.submit(build, folder, name)
    yield lambda name: futures[name].result()
    pool.shutdown(cancel_futures=True)


Made = Callable[[str], tuple[Path, ConversionResult]]


@pytest.mark.parametrize("name", COMPILED)
def test_logits(name: str, made: Made) -> None:
    folder, _ = made(name)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.float32, attn_implementation="eager"
    )
    random = np.random.default_rng(0)
    tokens = [int(token) for token in random.integers(0, SMALL["vocab_size"], LENGTH)]
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()
    sequence = mxc.load(folder / "m.mxc").sequence()
    found = np.concatenate([sequence.feed(tokens[:20]), *(sequence.feed([t]) for t in tokens[20:])])
    assert np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name in CASES if name not in STORED_NORMS])
def test_the_folder_is_the_same_model(name: str, made: Made) -> None:
    """The same program, the same bytes of weights; rotations within the rounding of a quotient."""
    folder, _ = made(name)
    models = [open_model(folder / place, activations="f32") for place in ("model", "m.gguf")]
    assert models[0].program() == models[1].program()
    told = [[note for note in model.notes if "factors" in note] for model in models]
    assert told[0] == told[1]
    assert bool(told[0]) == ("longrope" in name)
    sources = [open_checkpoint(folder / place) for place in ("model", "m.gguf")]
    for name, tensor in sources[0].tensors.items():
        assert compare_tensors(tensor, sources[1].tensor(name))["result"] == "same bytes"
    tables = [model.decoder.generated(256) for model in models]
    assert tables[0].keys() == tables[1].keys()
    for key in tables[0]:
        assert np.abs(tables[0][key] - tables[1][key]).max() <= 2e-5


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3", "starcoder2"])
def test_transformers_reads_the_file(name: str, made: Made) -> None:
    """Names, metadata and norms as its own reader of GGUF has them, of these architectures."""
    folder, _ = made(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    read = load_gguf_checkpoint(str(folder / "m.gguf"), return_tensors=True, model_to_load=model)
    config, stored = model.config.to_dict(), model.state_dict()
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    assert read["tensors"].keys() == stored.keys() - tied
    for key, value in read["tensors"].items():
        torch.testing.assert_close(value, stored[key], rtol=0, atol=2e-7)
    rope = config["rope_parameters"]
    config |= {"rope_theta": rope.get("full_attention", rope)["rope_theta"]}
    for key, value in read["config"].items():
        assert config[key] == (pytest.approx(value) if isinstance(value, float) else value), key


@each
def test_what_llama_cpp_would_compute_is_said(name: str, made: Made) -> None:
    """Notes on tensors that gguf does not list for an architecture, and of what the case says."""
    folder, said = made(name)
    notes = [note for note in said.notes if "tokenizer" not in note]
    wanted = CASES[name][1]
    assert bool(notes) == (wanted is not None)
    assert wanted is None or any(wanted in note for note in notes)
    reader = gguf.GGUFReader(folder / "m.gguf")
    architecture = reader.get_field("general.architecture").contents()
    kind = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known = {TENSOR_NAMES[tensor].replace("{bid}", "0") for tensor in MODEL_TENSORS[kind]}
    stems = {tensor.name.removesuffix(".weight").removesuffix(".bias") for tensor in reader.tensors}
    unknown = {re.sub(r"^blk\.\d+", "blk.0", stem) for stem in stems} - known
    assert not unknown or any("refuses the file" in note for note in notes)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            transformers.LlamaConfig(
                **SMALL | {"hidden_size": 256},
                rope_parameters=YARN | {"truncate": False, "original_max_position_embeddings": 99},
            ),
            "rope.scaling.truncate is False; a reader of the file would take True",
        ),
        (
            transformers.MixtralConfig(**SMALL, num_local_experts=2, hidden_act="gelu"),
            "hidden_act 'gelu' is not supported",
        ),
        (
            transformers.Gemma2Config(**TWO, **SLIDING, head_dim=32, query_pre_attn_scalar=24),
            r"layers\[0\].attention.scale is 0.204.*; a reader of the file would take 0.176",
        ),
        (
            transformers.Qwen3NextConfig(**SMALL | {"num_hidden_layers": 4}),
            "architecture qwen3_next is not written as GGUF; wanted one of .*olmo2",
        ),
        (transformers.OPTConfig(), "architecture .*'opt' is not supported; supported: Arcee"),
        (
            transformers.GptOssConfig(
                **SMALL,
                architectures=["GptOssForCausalLM"],
                num_local_experts=4,
                swiglu_limit=5.0,
                attention_bias=False,
                tie_word_embeddings=True,
            ),
            r"layers\[0\].mlp.activation.limit is 5.0; a reader of the file would take 7.0",
        ),
    ],
)
def test_what_gguf_cannot_say(config: Any, said: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path / "model")
    save_file({"x.weight": torch.ones(2, 2)}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match=said):
        convert(tmp_path / "model", "gguf", tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_norms_of_gemma_stay_in_the_file(made: Made, tmp_path: Path) -> None:
    folder, _ = made("gemma2")
    with pytest.raises(CheckpointError, match="norms of gemma2 have one added in a GGUF"):
        convert(folder / "m.gguf", "compressed-tensors", tmp_path / "out")
