// A dequantized weight whose bytes are a parameter: the same at every call.
// Right: the packed parameter stays the only copy. IREE hoists the dequantized one into a global
// that an initialiser fills at every load, where it grows by less than 1 MiB.
#in = affine_map<(n, ko, kb) -> (n, ko, kb)>
#scale = affine_map<(n, ko, kb) -> (n, ko)>
#lhs = affine_map<(m, n, ko, kb) -> (m, ko, kb)>
#rhs = affine_map<(m, n, ko, kb) -> (n, ko, kb)>
#acc = affine_map<(m, n, ko, kb) -> (m, n)>
util.global private @bytes = #flow.parameter.named<"model"::"bytes"> : tensor<64x64x16xi8>
util.global private @scales = #flow.parameter.named<"model"::"scales"> : tensor<64x64xi8>
util.func public @main(%x: tensor<16x64x32xf32>) -> tensor<16x64xf32> {
  %b8 = util.global.load @bytes : tensor<64x64x16xi8>
  %s8 = util.global.load @scales : tensor<64x64xi8>
  %b = flow.tensor.bitcast %b8 : tensor<64x64x16xi8> -> tensor<64x64x32xf4E2M1FN>
  %s = flow.tensor.bitcast %s8 : tensor<64x64xi8> -> tensor<64x64xf8E8M0FNU>
  %wide = tensor.empty() : tensor<64x64x32xf32>
  %w = linalg.generic {indexing_maps = [#in, #scale, #in], iterator_types = ["parallel", "parallel", "parallel"]} ins(%b, %s : tensor<64x64x32xf4E2M1FN>, tensor<64x64xf8E8M0FNU>) outs(%wide : tensor<64x64x32xf32>) {
  ^bb0(%e: f4E2M1FN, %es: f8E8M0FNU, %unused: f32):
    %0 = arith.scaling_extf %e, %es : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %0 : f32
  } -> tensor<64x64x32xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<16x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x64xf32>) -> tensor<16x64xf32>
  %r = linalg.generic {indexing_maps = [#lhs, #rhs, #acc], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %w : tensor<16x64x32xf32>, tensor<64x64x32xf32>) outs(%acc : tensor<16x64xf32>) {
  ^bb0(%a: f32, %y: f32, %sum: f32):
    %1 = arith.mulf %a, %y : f32
    %2 = arith.addf %sum, %1 : f32
    linalg.yield %2 : f32
  } -> tensor<16x64xf32>
  util.return %r : tensor<16x64xf32>
}
