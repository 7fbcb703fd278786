// Packed f6 codes read through a bitcast, the way f4 codes are.
// Right: it compiles. llvm-cpu cannot legalise vector.load of f6.
#map = affine_map<(i) -> (i)>
func.func @widen(%bytes: tensor<24xi8>) -> tensor<32xf32> {
  %codes = flow.tensor.bitcast %bytes : tensor<24xi8> -> tensor<32xf6E2M3FN>
  %empty = tensor.empty() : tensor<32xf32>
  %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%codes : tensor<32xf6E2M3FN>) outs(%empty : tensor<32xf32>) {
  ^bb0(%a: f6E2M3FN, %unused: f32):
    %w = arith.extf %a : f6E2M3FN to f32
    linalg.yield %w : f32
  } -> tensor<32xf32>
  return %r : tensor<32xf32>
}
