// One expert is gathered from packed weights, beside the same with two. With one, IREE reads the
// gathered slice as a part of the tensor, and cannot view a part of a packed tensor as bytes.
util.func public @one(%w8: tensor<4x8x2x16xi8>, %e: tensor<1xi32>) -> tensor<1x8x2x32xf32> {
  %w = flow.tensor.bitcast %w8 : tensor<4x8x2x16xi8> -> tensor<4x8x2x32xf4E2M1FN>
  %0 = tensor.empty() : tensor<1x8x2x32xf4E2M1FN>
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%w, %e : tensor<4x8x2x32xf4E2M1FN>, tensor<1xi32>) outs(%0 : tensor<1x8x2x32xf4E2M1FN>) -> tensor<1x8x2x32xf4E2M1FN>
  %1 = tensor.empty() : tensor<1x8x2x32xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (a, b, c, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%g : tensor<1x8x2x32xf4E2M1FN>) outs(%1 : tensor<1x8x2x32xf32>) {
  ^bb0(%x: f4E2M1FN, %o: f32):
    %y = arith.extf %x : f4E2M1FN to f32
    linalg.yield %y : f32
  } -> tensor<1x8x2x32xf32>
  util.return %r : tensor<1x8x2x32xf32>
}
