// A weight dequantized, then multiplied: the way most models are written.
// Right: one dispatch that reads packed bytes. On the CPU stock IREE writes the weight to memory as f32.
#in = affine_map<(n, ko, kb) -> (n, ko, kb)>
#scale = affine_map<(n, ko, kb) -> (n, ko)>
#lhs = affine_map<(m, n, ko, kb) -> (m, ko, kb)>
#rhs = affine_map<(m, n, ko, kb) -> (n, ko, kb)>
#acc = affine_map<(m, n, ko, kb) -> (m, n)>
util.func public @main(%x: tensor<16x64x32xf32>, %b8: tensor<2048x64x16xi8>, %s8: tensor<2048x64xi8>) -> tensor<16x2048xf32> {
  %b = flow.tensor.bitcast %b8 : tensor<2048x64x16xi8> -> tensor<2048x64x32xf4E2M1FN>
  %s = flow.tensor.bitcast %s8 : tensor<2048x64xi8> -> tensor<2048x64xf8E8M0FNU>
  %wide = tensor.empty() : tensor<2048x64x32xf32>
  %w = linalg.generic {indexing_maps = [#in, #scale, #in], iterator_types = ["parallel", "parallel", "parallel"]} ins(%b, %s : tensor<2048x64x32xf4E2M1FN>, tensor<2048x64xf8E8M0FNU>) outs(%wide : tensor<2048x64x32xf32>) {
  ^bb0(%e: f4E2M1FN, %es: f8E8M0FNU, %unused: f32):
    %0 = arith.scaling_extf %e, %es : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %0 : f32
  } -> tensor<2048x64x32xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<16x2048xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x2048xf32>) -> tensor<16x2048xf32>
  %r = linalg.generic {indexing_maps = [#lhs, #rhs, #acc], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %w : tensor<16x64x32xf32>, tensor<2048x64x32xf32>) outs(%acc : tensor<16x2048xf32>) {
  ^bb0(%a: f32, %y: f32, %sum: f32):
    %1 = arith.mulf %a, %y : f32
    %2 = arith.addf %sum, %1 : f32
    linalg.yield %2 : f32
  } -> tensor<16x2048xf32>
  util.return %r : tensor<16x2048xf32>
}
