// Dequantize and multiply: the stock compiler writes the wide weight. Then what is no contraction: a sum
// of scaled elements, and a weighted sum of rows that an index chooses. Last a product of three factors,
// and one of what was packed and is decoded in a way that is not known.
util.func public @materialised(%x: tensor<16x512xf32>) -> tensor<16x256xf32> {
  %b = util.global.load immutable @w0 : tensor<256x16x16xi8>
  %c = util.global.load immutable @w0.s : tensor<256x16xi8>
  %w = flow.tensor.bitcast %b : tensor<256x16x16xi8> -> tensor<256x16x32xf4E2M1FN>
  %s = flow.tensor.bitcast %c : tensor<256x16xi8> -> tensor<256x16xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %de = tensor.empty() : tensor<256x16x32xf32>
  %d = linalg.generic {indexing_maps = [affine_map<(n, o, i) -> (n, o, i)>,
      affine_map<(n, o, i) -> (n, o)>, affine_map<(n, o, i) -> (n, o, i)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<256x16x32xf4E2M1FN>, tensor<256x16xf8E8M0FNU>)
      outs(%de : tensor<256x16x32xf32>) {
  ^bb0(%p: f4E2M1FN, %q: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %p, %q : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<256x16x32xf32>
  %f = tensor.collapse_shape %d [[0], [1, 2]] : tensor<256x16x32xf32> into tensor<256x512xf32>
  %e = tensor.empty() : tensor<16x256xf32>
  %a = linalg.fill ins(%z : f32) outs(%e : tensor<16x256xf32>) -> tensor<16x256xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %f : tensor<16x512xf32>, tensor<256x512xf32>)
      outs(%a : tensor<16x256xf32>) -> tensor<16x256xf32> loc("wide")
  util.return %r : tensor<16x256xf32>
}
util.func public @others(%b: tensor<64x16x16xi8>, %c: tensor<64x16xi8>, %i: tensor<64x2xi32>,
    %p: tensor<64x2xf32>, %v: tensor<99xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %w = flow.tensor.bitcast %b : tensor<64x16x16xi8> -> tensor<64x16x32xf4E2M1FN>
  %s = flow.tensor.bitcast %c : tensor<64x16xi8> -> tensor<64x16xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64xf32>
  %a = linalg.fill ins(%z : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(n, o, i) -> (n, o, i)>,
      affine_map<(n, o, i) -> (n, o)>, affine_map<(n, o, i) -> (n)>],
      iterator_types = ["parallel", "reduction", "reduction"]}
      ins(%w, %s : tensor<64x16x32xf4E2M1FN>, tensor<64x16xf8E8M0FNU>)
      outs(%a : tensor<64xf32>) {
  ^bb0(%x: f4E2M1FN, %q: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %x, %q : f4E2M1FN, f8E8M0FNU to f32
    %t = arith.addf %o, %y : f32
    linalg.yield %t : f32
  } -> tensor<64xf32> loc("row.sums")
  %1 = linalg.generic {indexing_maps = [affine_map<(m, j) -> (m, j)>,
      affine_map<(m, j) -> (m, j)>, affine_map<(m, j) -> (m)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%i, %p : tensor<64x2xi32>, tensor<64x2xf32>) outs(%a : tensor<64xf32>) {
  ^bb0(%x: i32, %q: f32, %o: f32):
    %j = arith.index_cast %x : i32 to index
    %f = tensor.extract %v[%j] : tensor<99xf32>
    %y = arith.mulf %f, %q : f32
    %t = arith.addf %o, %y : f32
    linalg.yield %t : f32
  } -> tensor<64xf32> loc("chosen")
  util.return %0, %1 : tensor<64xf32>, tensor<64xf32>
}
util.func public @masked(%x: tensor<64xf32>, %w: tensor<16x64xf8E4M3FN>,
    %p: tensor<16x64xf32>) -> tensor<16xf32> {
  %a = arith.constant dense<0.0> : tensor<16xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(n, k) -> (k)>, affine_map<(n, k) -> (n, k)>,
      affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%x, %w, %p : tensor<64xf32>, tensor<16x64xf8E4M3FN>, tensor<16x64xf32>)
      outs(%a : tensor<16xf32>) {
  ^bb0(%b: f32, %c: f8E4M3FN, %m: f32, %o: f32):
    %wide = arith.extf %c : f8E4M3FN to f32
    %value = arith.mulf %wide, %m : f32
    %y = arith.mulf %b, %value : f32
    %t = arith.addf %o, %y : f32
    linalg.yield %t : f32
  } -> tensor<16xf32> loc(fused<{mxc.contraction = {reason = "a mask"}}>["masked"])
  util.return %0 : tensor<16xf32>
}
util.func public @unknown(%x: tensor<16x64xf32>, %w: tensor<64x16xf32>) -> tensor<16x16xf32> {
  %a = arith.constant dense<0.0> : tensor<16x16xf32>
  %r = linalg.matmul ins(%x, %w : tensor<16x64xf32>, tensor<64x16xf32>)
      outs(%a : tensor<16x16xf32>) -> tensor<16x16xf32>
      loc(fused<{mxc.contraction = {decoded, reason = "a table"}}>["unknown"])
  util.return %r : tensor<16x16xf32>
}
