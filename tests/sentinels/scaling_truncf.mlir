// arith.scaling_truncf with scale 1 (E8M0 byte 127): a plain rounding to the element format.
// Right: round to nearest, ties to even. llvm-cpu emits other codes for part of the inputs.
#map = affine_map<(i) -> (i)>
func.func @f4E2M1FN(%x: tensor<4096xf32>, %scale: tensor<4096xi8>) -> tensor<4096xi8> {
  %empty = tensor.empty() : tensor<4096xi8>
  %r = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%x, %scale : tensor<4096xf32>, tensor<4096xi8>) outs(%empty : tensor<4096xi8>) {
  ^bb0(%a: f32, %s: i8, %unused: i8):
    %e8m0 = arith.bitcast %s : i8 to f8E8M0FNU
    %q = arith.scaling_truncf %a, %e8m0 : f32, f8E8M0FNU to f4E2M1FN
    %code = arith.bitcast %q : f4E2M1FN to i4
    %byte = arith.extui %code : i4 to i8
    linalg.yield %byte : i8
  } -> tensor<4096xi8>
  return %r : tensor<4096xi8>
}
func.func @f8E4M3FN(%x: tensor<4096xf32>, %scale: tensor<4096xi8>) -> tensor<4096xi8> {
  %empty = tensor.empty() : tensor<4096xi8>
  %r = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%x, %scale : tensor<4096xf32>, tensor<4096xi8>) outs(%empty : tensor<4096xi8>) {
  ^bb0(%a: f32, %s: i8, %unused: i8):
    %e8m0 = arith.bitcast %s : i8 to f8E8M0FNU
    %q = arith.scaling_truncf %a, %e8m0 : f32, f8E8M0FNU to f8E4M3FN
    %byte = arith.bitcast %q : f8E4M3FN to i8
    linalg.yield %byte : i8
  } -> tensor<4096xi8>
  return %r : tensor<4096xi8>
}
func.func @f8E5M2(%x: tensor<4096xf32>, %scale: tensor<4096xi8>) -> tensor<4096xi8> {
  %empty = tensor.empty() : tensor<4096xi8>
  %r = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%x, %scale : tensor<4096xf32>, tensor<4096xi8>) outs(%empty : tensor<4096xi8>) {
  ^bb0(%a: f32, %s: i8, %unused: i8):
    %e8m0 = arith.bitcast %s : i8 to f8E8M0FNU
    %q = arith.scaling_truncf %a, %e8m0 : f32, f8E8M0FNU to f8E5M2
    %byte = arith.bitcast %q : f8E5M2 to i8
    linalg.yield %byte : i8
  } -> tensor<4096xi8>
  return %r : tensor<4096xi8>
}
