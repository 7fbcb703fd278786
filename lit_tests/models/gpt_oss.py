# RUN: %python %s | filecheck %s
"""The shape of the program that is built from a gpt-oss config; its numbers are tested elsewhere."""

import tempfile
from pathlib import Path

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.architectures.gpt_oss import decoder
from mxc.compiler.models.decoder import Builder
from mxc.compiler.models.options import Options
from mxc.formats.formats import FORMATS

# Weights are parameters; of the packed ones nothing but their bytes is known here.
# CHECK: util.global private @model.layers.0.mlp.experts.gate_up_proj_blocks = #flow.parameter.named<"model"::"model.layers.0.mlp.experts.gate_up_proj_blocks"> : tensor<4x128x2x16xi8>

# The cache is consumed and returned, so that it stays where it is.
# CHECK-LABEL: util.func public @prefill
# CHECK-SAME: (%arg0: tensor<8xi32>, %arg1: i32, %arg2: tensor<4x71x2x32xbf16> {iree.abi.consume}) -> (tensor<8x64xf32>, tensor<4x71x2x32xbf16>)
# Keys and values of layer 0 are written, then read in a window of 8 + 8 - 1 positions.
# CHECK: tensor.insert_slice {{.*}} into %arg2[0, %{{.*}}, 0, 0] [1, 8, 2, 32]
# CHECK: tensor.insert_slice {{.*}}[1, %{{.*}}, 0, 0] [1, 8, 2, 32]
# CHECK: tensor.extract_slice {{.*}} [1, 15, 2, 32]
# CHECK: iree_linalg_ext.topk_v2 dimension(1) is_sorted
# Experts: 16 pairs in at most (16 + 4 * 15) / 16 = 4 groups of 16 rows.
# CHECK: iree_linalg_ext.gather {{.*}} : tensor<4x128x2x32xf4E2M1FN>, tensor<4xi32>)
# CHECK: linalg.generic {{.*}} : tensor<4x16x2x32xbf16>, tensor<4x128x2x32xf4E2M1FN>, tensor<4x128x2xf8E8M0FNU>)
# Layer 1 sees everything: as many positions as there are.
# CHECK: tensor.extract_slice {{.*}} [1, %{{.*}}, 2, 32]

# One token: the two chosen experts, one row each, no sorting.
# CHECK-LABEL: util.func public @decode
# CHECK-SAME: -> (tensor<1x512xf32>, tensor<4x71x2x32xbf16>)
# CHECK: linalg.generic {{.*}} : tensor<2x1x2x32xbf16>, tensor<2x128x2x32xf4E2M1FN>, tensor<2x128x2xf8E8M0FNU>)

# CHECK-LABEL: util.func public @logits(
# CHECK-LABEL: util.func public @logits_row(
with tempfile.TemporaryDirectory() as folder:
    config = write_gpt_oss(Path(folder), GptOssOptions(), headers_only=True)


def build(
    activations: str,
    dense: str | None = None,
    batches: tuple[int, ...] = (),
    *,
    grouped: bool = False,
) -> None:
    options = Options(
        max_sequence_length=64,
        prefill_chunk=8,
        activations=activations,
        floats="bf16",
        quantize_dense=dense,
        batches=batches,
    )
    model = decoder(config)
    formats = {
        each.key: FORMATS["mxfp4"]
        if each.experts and each.matrix
        else FORMATS[dense]
        if dense and each.quantisable
        else "bf16"
        for each in model.parameters(lambda name: None, head=dense is not None)
    }
    module = Builder(model, formats, options, grouped=grouped).build()
    assert module.operation.verify()
    print(module)


build("bf16", grouped=True)

# int8 activations: the router sees bf16; rows are quantised once, then gathered for their experts.
# CHECK-LABEL: util.func public @decode
# CHECK: linalg.generic {{.*}} : tensor<1x64xbf16>, tensor<4x64xbf16>) outs(%{{.*}} : tensor<1x4xf32>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x2xi32>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x2xf32>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x2x32xi8>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x2x2x32xi8>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x2x2xf32>)
# CHECK: linalg.generic {{.*}} : tensor<2x1x2x32xi8>, tensor<2x128x2x32xf4E2M1FN>, tensor<2x1x2xf32>, tensor<2x128x2xf8E8M0FNU>)
build("i8")

# Dense weights in blocks: Q, K and V read the same elements and scales; so does the head.
# CHECK: util.global private @model.layers.0.self_attn.q_proj.weight_blocks = {{.*}} : tensor<128x2x32xi8>
# CHECK-LABEL: util.func public @decode
# CHECK: %[[SCALES:.*]] = flow.tensor.bitcast %{{.*}} : tensor<1x2xi8> -> tensor<1x2xf8E8M0FNU>
# CHECK: linalg.generic {{.*}} ins(%[[X:.*]], %{{.*}}, %[[SCALES]], %{{.*}} : tensor<1x2x32xi8>, tensor<128x2x32xi8>, tensor<1x2xf8E8M0FNU>, tensor<128x2xf8E8M0FNU>)
# CHECK: linalg.generic {{.*}} ins(%[[X]], %{{.*}}, %[[SCALES]], %{{.*}} : tensor<1x2x32xi8>, tensor<64x2x32xi8>,
# CHECK: linalg.generic {{.*}} ins(%[[X]], %{{.*}}, %[[SCALES]], %{{.*}} : tensor<1x2x32xi8>, tensor<64x2x32xi8>,
# CHECK: linalg.generic {{.*}} : tensor<1x64xbf16>, tensor<4x64xbf16>) outs(%{{.*}} : tensor<1x4xf32>)
# CHECK: linalg.generic {{.*}} : tensor<1x2x32xi8>, tensor<512x2x32xi8>, tensor<1x2xf8E8M0FNU>, tensor<512x2xf8E8M0FNU>)
build("mxint8", "mxint8")

# Two sequences decoded together: one product for both rows, a cache and a position of each.
# CHECK-LABEL: util.func public @decode_batch_2
# CHECK-SAME: (%arg0: tensor<2xi32>, %arg1: i32, %arg2: i32, %arg3: tensor<4x71x2x32xbf16> {iree.abi.consume}, %arg4: tensor<4x71x2x32xbf16> {iree.abi.consume}) -> (tensor<2x512xf32>, tensor<4x71x2x32xbf16>, tensor<4x71x2x32xbf16>)
# CHECK: linalg.generic {{.*}} : tensor<2x64xbf16>, tensor<128x64xbf16>) outs(%{{.*}} : tensor<2x128xf32>)
# CHECK: tensor.insert_slice {{.*}} into %arg3[0, %{{.*}}, 0, 0] [1, 1, 2, 32]
# CHECK: tensor.extract_slice {{.*}} [1, 8, 2, 32]
# CHECK: tensor.insert_slice {{.*}} into %arg4[0, %{{.*}}, 0, 0] [1, 1, 2, 32]
# CHECK: tensor.extract_slice {{.*}} [1, 8, 2, 32]
# CHECK: linalg.generic {{.*}} : tensor<2x128xbf16>, tensor<64x128xbf16>) outs(%{{.*}} : tensor<2x64xf32>)
# Experts: a row for each of four pairs.
# CHECK: linalg.generic {{.*}} : tensor<4x1x2x32xbf16>, tensor<4x128x2x32xf4E2M1FN>, tensor<4x128x2xf8E8M0FNU>)
# CHECK: linalg.generic {{.*}} : tensor<2x64xbf16>, tensor<512x64xbf16>) outs(%{{.*}} : tensor<2x512xf32>)
# CHECK-LABEL: util.func public @logits(
build("bf16", batches=(2,))
