"""The metadata of a GGUF as a config: llama.cpp's keys and defaults, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from mxc.compiler.models.configs.gguf import transformers_config
from mxc.compiler.models.configs.gguf_rope import longrope_fields
from mxc.errors import CheckpointError

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 100,
}


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "bert"}, "general.architecture 'bert' is not supported; .*llama"),
        ({"llama.logit_scale": 2.0}, r"metadata llama\.logit_scale = 2\.0 is not known"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type 'longrope' is not supported"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8, heads have 16"),
        ({"llama.expert_count": 2, "llama.expert_weights_norm": False}, "expert_weights_norm"),
        ({"general.architecture": np.array([1, 2])}, "general.architecture .* is not supported"),
        ({"llama.block_count": np.array([1, 2])}, "block_count is an array of 2; only one value"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "wanted a number for tokenizer.ggml.eos_token_id"),
        (
            {"llama.attention.sliding_window": 4,
             "llama.attention.sliding_window_pattern": np.array([True, False])},
            "sliding_window_pattern has 2 entries, wanted one for each of 1 layers",
        ),
        (
            {"llama.block_count": 2, "llama.attention.sliding_window": 4,
             "llama.attention.sliding_window_pattern": np.array([True, False])},
            "some layers slide and some do not, which is not supported of llama",
        ),
        ({"llama.rope.scaling.factor": "2"}, "wanted a positive number for rope.scaling.factor"),
        (
            {"llama.rope.scaling.factor": 2.0, "llama.rope.scaling.attn_factor": 2.0},
            "attn_factor is 2.0; with linear scaling only 1 is supported",
        ),
        (YARN | {"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5; only 1"),
        (
            YARN | {"llama.rope.scaling.yarn_attn_factor": 2.0,
                    "llama.rope.scaling.attn_factor": 2.0},
            "yarn_attn_factor is 2.0, but rope.scaling.attn_factor 2.0 times YaRN's own is",
        ),
    ],
)  # fmt: skip
def test_metadata_that_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        transformers_config(LLAMA | changes, (), "m.gguf")


def test_what_the_file_does_not_say_is_refused() -> None:
    qwen2 = {key.replace("llama.", "qwen2."): value for key, value in LLAMA.items()}
    qwen2 |= {"general.architecture": "qwen2", "qwen2.attention.sliding_window": 4}
    with pytest.raises(CheckpointError, match="no sliding_window_pattern says which layers slide"):
        transformers_config(qwen2, (), "m.gguf")
    with pytest.raises(CheckpointError, match=r"rope_factors_long\.weight is a rotary factor"):
        transformers_config(LLAMA, ("rope_factors_long.weight",), "m.gguf")
    with pytest.raises(CheckpointError, match=r"cohere2\.attention\.sliding_window is missing"):
        transformers_config(of("cohere2"), (), "m.gguf")


def of(kind: str, **changes: Any) -> dict[str, Any]:
    """The metadata of another architecture."""
    own = {key.replace("llama.", f"{kind}."): value for key, value in LLAMA.items()}
    return own | {"general.architecture": kind} | changes


def test_defaults_are_those_of_llama_cpp() -> None:
    gemma2 = transformers_config(of("gemma2"), (), "m.gguf")
    assert (gemma2["attn_logit_softcapping"], gemma2["final_logit_softcapping"]) == (50.0, 30.0)
    assert (gemma2["sliding_window"], gemma2["layer_types"]) == (4096, ["sliding_attention"])
    assert (gemma2["head_dim"], gemma2["query_pre_attn_scalar"], gemma2["rope_theta"]) == (
        16,
        16,
        1e4,
    )
    sizes = {"gemma2.block_count": 46, "gemma2.attention.key_length": 128}
    assert transformers_config(of("gemma2", **sizes), (), "m.gguf")["query_pre_attn_scalar"] == 16
    # Half of a head is rotated.
    glm4 = transformers_config(of("glm4", **{"glm4.rope.dimension_count": 8}), (), "m.gguf")
    assert glm4["partial_rotary_factor"] == 0.5


FACTORS = {name: np.ones(8, np.float32) for name in ("long", "short")}


@pytest.mark.parametrize(
    ("names", "own", "said"),
    [
        (("long",), {}, r"rope_factors_short\.weight is missing"),
        (("long", "short"), {}, r"phi3\.rope\.scaling\.original_context_length is missing"),
    ],
)
def test_longrope_that_is_incomplete(
    names: tuple[str, ...], own: dict[str, Any], said: str
) -> None:
    factors = {f"rope_factors_{name}.weight": FACTORS[name] for name in names}
    with pytest.raises(CheckpointError, match=said):
        longrope_fields(factors, of("phi3", **own), "m.gguf")


@pytest.mark.parametrize(
    ("changes", "scaling"),
    [
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, None),
        # llama.cpp's defaults: linear, the first name of the factor, YaRN of the whole context.
        ({"llama.rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            YARN | {"llama.rope.scaling.attn_factor": 1.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        # As convert_hf_to_gguf.py writes it, and as llama.cpp multiplies.
        (
            YARN | {"llama.rope.scaling.yarn_attn_factor": 2.0,
                    "llama.rope.scaling.yarn_beta_fast": 16.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
             "attention_factor": 2.0, "beta_fast": 16.0},
        ),
        (
            YARN | {"llama.rope.scaling.attn_factor": 2.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
             "attention_factor": 2 * (0.1 * math.log(4) + 1)},
        ),
    ],
)  # fmt: skip
def test_rotary_scaling_as_llama_cpp_reads_it(
    changes: dict[str, Any], scaling: dict[str, Any] | None
) -> None:
    assert transformers_config(LLAMA | changes, (), "m.gguf").get("rope_scaling") == scaling


def test_windows_as_llama_cpp_reads_them() -> None:
    """A period of N: each N-th layer is full; 0: none is. Without one gpt-oss has 2."""
    for period, slides in ((3, "SSFSS"), (2, "SFSFS"), (1, "FFFFF"), (0, "SSSSS"), (None, "SFSFS")):
        own = {key.replace("llama.", "gpt-oss."): value for key, value in LLAMA.items()}
        own |= {"general.architecture": "gpt-oss", "gpt-oss.block_count": 5}
        own["gpt-oss.attention.sliding_window"] = 4
        if period is not None:
            own["gpt-oss.attention.sliding_window_pattern"] = period
        types = transformers_config(own, (), "m.gguf")["layer_types"]
        assert "".join("S" if kind.startswith("sliding") else "F" for kind in types) == slides
