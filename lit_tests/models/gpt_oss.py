# RUN: %python %s | filecheck %s
"""The shape of the program that is built from a gpt-oss config; its numbers are tested elsewhere."""

import tempfile
from pathlib import Path

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.architectures.gpt_oss import decoder
from mxc.compiler.models.builder import Builder
from mxc.compiler.models.options import Options
from mxc.formats.formats import FORMATS

# Attention is a named operation; layer 1 sees everything.
# CHECK: util.func private @mxc.attention.1({{.*}}) -> tensor<?x2x2x32xf32> attributes {mxc.operation = "attention", mxc.options = {bits = 16 : i64, scale = {{[^,]*}}}

# Weights are parameters; of the packed ones nothing but their bytes is known here.
# CHECK: util.global private @model.layers.0.mlp.experts.gate_up_proj_blocks = #flow.parameter.named<"model"::"model.layers.0.mlp.experts.gate_up_proj_blocks"> : tensor<4x128x2x16xi8>

# Layer 0 sees a window.
# CHECK: util.func private @mxc.attention({{.*}}) -> tensor<?x2x2x32xf32> attributes {mxc.operation = "attention", mxc.options = {bits = 16 : i64, scale = {{.*}}, window = 8 : i64}, mxc.sizes = array<i64: 0, 0>}

# Tokens, positions, runs and wanted rows; slots and lists of both kinds of pages; their pools, which
# are consumed and returned, so that they stay where they are.
# CHECK-LABEL: util.func public @step(%arg0: tensor<?xi32>, %arg1: tensor<?xi32>, %arg2: tensor<?x3xi32>, %arg3: tensor<?xi32>, %arg4: tensor<?xi32>, %arg5: tensor<?x?xi32>, %arg6: tensor<?xi32>, %arg7: tensor<?x?xi32>,
# CHECK-SAME: %arg8: tensor<?x2x64x2x32xbf16> {iree.abi.consume}, %arg9: tensor<?x2x64x2x32xbf16> {iree.abi.consume}) -> (tensor<?x512xf32>, tensor<?x2x64x2x32xbf16>, tensor<?x2x64x2x32xbf16>)
# Keys and values of layer 0 are written to its pages, then read there.
# CHECK: %[[WRITTEN:.*]]:2 = util.call @mxc.rotary_write({{.*}}, %arg8)
# CHECK: util.call @mxc.attention({{.*}}, %[[WRITTEN]]#1,
# CHECK: util.call @mxc.row_norm(
# CHECK: util.call @mxc.route({{.*}}) : (tensor<?x64xbf16>, tensor<4x64xbf16>, tensor<4xbf16>) -> (tensor<?x2xf32>, tensor<?x2xi32>)
# CHECK: util.call @mxc.group_by_expert(
# Experts: pairs in groups of 16 rows or of 64, as many as there may be.
# CHECK: iree_linalg_ext.gather {{.*}} : tensor<4x128x2x32xf4E2M1FN>, tensor<?xi32>)
# CHECK: linalg.generic {{.*}} : tensor<?x?x2x32xbf16>, tensor<?x128x2x32xf4E2M1FN>, tensor<?x128x2xf8E8M0FNU>)
# CHECK: util.call @mxc.sum_experts(
# CHECK: util.call @mxc.attention.1(
# The head is computed of the rows that are wanted.
# CHECK: linalg.generic {{.*}} ins(%arg3 : tensor<?xi32>) outs(%{{.*}} : tensor<?x64xf32>)
# CHECK: linalg.generic {{.*}} : tensor<?x64xbf16>, tensor<512x64xbf16>) outs(%{{.*}} : tensor<?x512xf32>)
with tempfile.TemporaryDirectory() as folder:
    config = write_gpt_oss(Path(folder), GptOssOptions(), headers_only=True)


def build(
    activations: str,
    dense: str | None = None,
    *,
    grouped: bool = False,
) -> None:
    options = Options(
        max_sequence_length=64,
        activations=activations,
        floats="bf16",
        kv_cache="bf16",
        quantize_dense=dense,
    )
    model = decoder(config)
    formats = {
        each.key: FORMATS["mxfp4"]
        if each.experts and each.matrix
        else FORMATS[dense]
        if dense and each.quantizable
        else "bf16"
        for each in model.parameters(lambda name: None, head=dense is not None)
    }
    formats |= dict.fromkeys(model.generated(options.max_sequence_length), "f32")
    module = Builder(model, formats, options, ((0, 16), (20, 32)) if grouped else ()).build()
    assert module.operation.verify()
    print(module)


build("bf16", grouped=True)

# int8 activations: the router sees bf16; rows are quantized once, then gathered for their experts.
# CHECK-LABEL: util.func public @step
# CHECK: linalg.generic {{.*}} : tensor<?x64xbf16>, tensor<4x64xbf16>) outs(%{{.*}} : tensor<?x4xf32>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<?x2xi32>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<?x2xf32>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<?x2x32xi8>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<?x2x2x32xi8>)
# CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<?x2x2xf32>)
# CHECK: linalg.generic {{.*}} : tensor<?x1x2x32xi8>, tensor<?x128x2x32xf4E2M1FN>, tensor<?x1x2xf32>, tensor<?x128x2xf8E8M0FNU>)
build("i8")

# Dense weights in blocks: Q, K and V are one weight. The head is in blocks too.
# CHECK: util.global private @model.layers.0.self_attn.qkv_proj.weight_blocks = {{.*}} : tensor<256x2x32xi8>
# CHECK-LABEL: util.func public @step
# CHECK: %[[SCALES:.*]] = flow.tensor.bitcast %{{.*}} : tensor<?x2xi8>{%{{.*}}} -> tensor<?x2xf8E8M0FNU>
# CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}}, %[[SCALES]], %{{.*}} : tensor<?x2x32xi8>, tensor<256x2x32xi8>, tensor<?x2xf8E8M0FNU>, tensor<256x2xf8E8M0FNU>)
# CHECK: linalg.generic {{.*}} : tensor<?x64xbf16>, tensor<4x64xbf16>) outs(%{{.*}} : tensor<?x4xf32>)
# CHECK: linalg.generic {{.*}} : tensor<?x2x32xi8>, tensor<512x2x32xi8>, tensor<?x2xf8E8M0FNU>, tensor<512x2xf8E8M0FNU>)
build("mxint8", "mxint8")

# Sequences together are rows of one product; without groups, an expert's weights for each pair.
# CHECK-LABEL: util.func public @step
# CHECK: linalg.generic {{.*}} : tensor<?x1x2x32xbf16>, tensor<?x128x2x32xf4E2M1FN>, tensor<?x128x2xf8E8M0FNU>)
build("bf16")
