// arith.truncf to f8E8M0FNU cuts off the mantissa, where frameworks round to nearest. To f8E4M3FN,
// of numbers that are not subnormal, it is right.
#map = affine_map<(i) -> (i)>
func.func @f8E8M0FNU(%x: tensor<4096xf32>) -> tensor<4096xi8> {
  %empty = tensor.empty() : tensor<4096xi8>
  %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<4096xf32>) outs(%empty : tensor<4096xi8>) {
  ^bb0(%a: f32, %unused: i8):
    %q = arith.truncf %a : f32 to f8E8M0FNU
    %byte = arith.bitcast %q : f8E8M0FNU to i8
    linalg.yield %byte : i8
  } -> tensor<4096xi8>
  return %r : tensor<4096xi8>
}
func.func @f8E4M3FN(%x: tensor<4096xf32>) -> tensor<4096xi8> {
  %empty = tensor.empty() : tensor<4096xi8>
  %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<4096xf32>) outs(%empty : tensor<4096xi8>) {
  ^bb0(%a: f32, %unused: i8):
    %q = arith.truncf %a : f32 to f8E4M3FN
    %byte = arith.bitcast %q : f8E4M3FN to i8
    linalg.yield %byte : i8
  } -> tensor<4096xi8>
  return %r : tensor<4096xi8>
}
