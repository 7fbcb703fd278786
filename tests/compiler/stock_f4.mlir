util.func public @main(%a8: tensor<4096x128x16xi8>, %b8: tensor<4096x128x16xi8>, %as8: tensor<4096x128xi8>, %bs8: tensor<4096x128xi8>) -> tensor<4096x4096xf32> {
  %c0 = arith.constant 0 : index
  %a = flow.tensor.bitcast %a8 : tensor<4096x128x16xi8> -> tensor<4096x128x32xf4E2M1FN>
  %b = flow.tensor.bitcast %b8 : tensor<4096x128x16xi8> -> tensor<4096x128x32xf4E2M1FN>
  %as = flow.tensor.bitcast %as8 : tensor<4096x128xi8> -> tensor<4096x128xf8E8M0FNU>
  %bs = flow.tensor.bitcast %bs8 : tensor<4096x128xi8> -> tensor<4096x128xf8E8M0FNU>
  %e = tensor.empty() : tensor<4096x4096xf32>
  %z = arith.constant 0.0 : f32
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %r = linalg.generic { indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d2)>, affine_map<(d0, d1, d2, d3) -> (d1, d2)>, affine_map<(d0, d1, d2, d3) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"] } ins(%a, %b, %as, %bs : tensor<4096x128x32xf4E2M1FN>, tensor<4096x128x32xf4E2M1FN>, tensor<4096x128xf8E8M0FNU>, tensor<4096x128xf8E8M0FNU>) outs(%acc : tensor<4096x4096xf32>) {
  ^bb0(%l: f4E2M1FN, %rr: f4E2M1FN, %ls: f8E8M0FNU, %rs: f8E8M0FNU, %c: f32):
    %0 = arith.scaling_extf %l, %ls : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.scaling_extf %rr, %rs : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4096x4096xf32>
  util.return %r : tensor<4096x4096xf32>
}
