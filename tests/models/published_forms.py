"""A checkpoint of a Llama in which each projection is stored in another form."""

from tests.models.published_checkpoints import (
    FP8_ROWS,
    INT4_GROUPS,
    INT4_LARGE_GROUPS,
    INT8_GROUPS,
    INT8_ROWS,
    Published,
)
from tests.models.published_configs import LLAMA, compressed
from tests.models.stored_weights import (
    Store,
    compressed_mxfp4,
    compressed_nvfp4,
    fp8_of_rows,
    int4_of_groups,
    int4_of_large_groups,
    int8_of_groups,
    int8_of_rows,
)

#: A projection of a layer -> how it is stored, and what the config says of it.
FORMS: dict[str, tuple[Store, str]] = {
    "q_proj": (compressed_mxfp4, "mxfp4-pack-quantized"),
    "k_proj": (compressed_nvfp4, "nvfp4-pack-quantized"),
    "v_proj": (fp8_of_rows, "float-quantized"),
    "o_proj": (int4_of_groups, "pack-quantized"),
    "gate_proj": (int8_of_groups, "pack-quantized, int8"),
    "up_proj": (int8_of_rows, "int-quantized"),
    "down_proj": (int4_of_large_groups, "pack-quantized, groups of 128"),
}


def one_form_a_projection(hidden: int) -> Published:
    """The checkpoint at this width, a multiple of 128."""
    return Published(
        model="",
        config={**LLAMA, "hidden_size": hidden, "intermediate_size": 2 * hidden},
        quantization=compressed(
            {said: [f"re:.*{part}"] for part, (_, said) in FORMS.items()}, ["lm_head"]
        ),
        stores={f".*{part}": store for part, (store, _) in FORMS.items()},
        packed={
            "self_attn.v_proj": FP8_ROWS,
            "self_attn.o_proj": INT4_GROUPS,
            "mlp.gate_proj": INT8_GROUPS,
            "mlp.up_proj": INT8_ROWS,
            "mlp.down_proj": INT4_LARGE_GROUPS,
        },
    )
