// A scaled contraction twice: operands (lhs, rhs, lhs scale, rhs scale), and each scale behind its
// elements, as fusion leaves them. Both mean the same. gfx950 gets its instruction for the first only.
#lhs = affine_map<(m, n, ko, kb) -> (m, ko, kb)>
#rhs = affine_map<(m, n, ko, kb) -> (n, ko, kb)>
#lhs_scale = affine_map<(m, n, ko, kb) -> (m, ko)>
#rhs_scale = affine_map<(m, n, ko, kb) -> (n, ko)>
#acc = affine_map<(m, n, ko, kb) -> (m, n)>
util.func public @canonical(%a8: tensor<256x32x16xi8>, %b8: tensor<256x32x16xi8>, %as8: tensor<256x32xi8>, %bs8: tensor<256x32xi8>) -> tensor<256x256xf32> {
  %a = flow.tensor.bitcast %a8 : tensor<256x32x16xi8> -> tensor<256x32x32xf4E2M1FN>
  %b = flow.tensor.bitcast %b8 : tensor<256x32x16xi8> -> tensor<256x32x32xf4E2M1FN>
  %as = flow.tensor.bitcast %as8 : tensor<256x32xi8> -> tensor<256x32xf8E8M0FNU>
  %bs = flow.tensor.bitcast %bs8 : tensor<256x32xi8> -> tensor<256x32xf8E8M0FNU>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<256x256xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<256x256xf32>) -> tensor<256x256xf32>
  %r = linalg.generic {indexing_maps = [#lhs, #rhs, #lhs_scale, #rhs_scale, #acc], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%a, %b, %as, %bs : tensor<256x32x32xf4E2M1FN>, tensor<256x32x32xf4E2M1FN>, tensor<256x32xf8E8M0FNU>, tensor<256x32xf8E8M0FNU>) outs(%acc : tensor<256x256xf32>) {
  ^bb0(%x: f4E2M1FN, %y: f4E2M1FN, %xs: f8E8M0FNU, %ys: f8E8M0FNU, %sum: f32):
    %0 = arith.scaling_extf %x, %xs : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.scaling_extf %y, %ys : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<256x256xf32>
  util.return %r : tensor<256x256xf32>
}
util.func public @interleaved(%a8: tensor<256x32x16xi8>, %b8: tensor<256x32x16xi8>, %as8: tensor<256x32xi8>, %bs8: tensor<256x32xi8>) -> tensor<256x256xf32> {
  %a = flow.tensor.bitcast %a8 : tensor<256x32x16xi8> -> tensor<256x32x32xf4E2M1FN>
  %b = flow.tensor.bitcast %b8 : tensor<256x32x16xi8> -> tensor<256x32x32xf4E2M1FN>
  %as = flow.tensor.bitcast %as8 : tensor<256x32xi8> -> tensor<256x32xf8E8M0FNU>
  %bs = flow.tensor.bitcast %bs8 : tensor<256x32xi8> -> tensor<256x32xf8E8M0FNU>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<256x256xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<256x256xf32>) -> tensor<256x256xf32>
  %r = linalg.generic {indexing_maps = [#lhs, #lhs_scale, #rhs, #rhs_scale, #acc], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%a, %as, %b, %bs : tensor<256x32x32xf4E2M1FN>, tensor<256x32xf8E8M0FNU>, tensor<256x32x32xf4E2M1FN>, tensor<256x32xf8E8M0FNU>) outs(%acc : tensor<256x256xf32>) {
  ^bb0(%x: f4E2M1FN, %xs: f8E8M0FNU, %y: f4E2M1FN, %ys: f8E8M0FNU, %sum: f32):
    %0 = arith.scaling_extf %x, %xs : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.scaling_extf %y, %ys : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<256x256xf32>
  util.return %r : tensor<256x256xf32>
}
