// RUN: mxc opt %s --passes mxc-set-cpu-schedule --verify-diagnostics

// IREE cannot legalise a load of f6.
func.func @six_bits(%x: tensor<3x4x32xf32>, %w: tensor<8x4x32xf6E2M3FN>, %s: tensor<8x4xf8E8M0FNU>, %acc: tensor<3x8xf32>) -> tensor<3x8xf32> {
  // expected-error @+1 {{no code generator can load elements of 6 bits yet; use a format of 4 or 8 bits}}
  %r = linalg.generic {
      indexing_maps = [
        affine_map<(m, n, a, b) -> (m, a, b)>, affine_map<(m, n, a, b) -> (n, a, b)>,
        affine_map<(m, n, a, b) -> (n, a)>, affine_map<(m, n, a, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<3x4x32xf32>, tensor<8x4x32xf6E2M3FN>, tensor<8x4xf8E8M0FNU>)
      outs(%acc : tensor<3x8xf32>) {
  ^bb0(%l: f32, %e: f6E2M3FN, %t: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %e, %t : f6E2M3FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x8xf32>
  return %r : tensor<3x8xf32>
}

// -----

// Nor has a dequantization that nothing contracts.
#map = affine_map<(i) -> (i)>
func.func @alone(%w: tensor<32xf6E3M2FN>, %out: tensor<32xf32>) -> tensor<32xf32> {
  // expected-error @+1 {{reads tensor<32xf6E3M2FN>: no code generator}}
  %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%w : tensor<32xf6E3M2FN>) outs(%out : tensor<32xf32>) {
  ^bb0(%a: f6E3M2FN, %unused: f32):
    %y = arith.extf %a : f6E3M2FN to f32
    linalg.yield %y : f32
  } -> tensor<32xf32>
  return %r : tensor<32xf32>
}
