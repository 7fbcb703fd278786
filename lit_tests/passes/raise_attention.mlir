// RUN: mxc opt %s --split-input-file --passes mxc-raise-attention | filecheck %s

// Matrices of a batch; keys are transposed, and each is shared by two heads. The mask is added.
// Without keys a row has been NaN, which a note says.
// CHECK: module attributes {mxc.notes = ["attention: a query whose keys are all masked by -inf gives zeros where the program gives NaN"]}
// CHECK-LABEL: util.func private @mxc.dense_attention
// CHECK-SAME: mxc.operation = "dense_attention", mxc.options = {scale = 1.250000e-01 : f32}
// CHECK-LABEL: func.func @batch
// CHECK-SAME: (%[[Q:.*]]: tensor<8x5x64xf32>, %[[K:.*]]: tensor<2x7x2x64xf32>, %[[V:.*]]: tensor<2x7x2x64xf32>, %[[MASK:.*]]: tensor<2x7xf32>)
// CHECK: %[[Y:.*]] = util.call @mxc.dense_attention({{.*}}, %[[K]], %[[V]], {{.*}}) : (tensor<2x5x2x2x64xf32>, tensor<2x7x2x64xf32>, tensor<2x7x2x64xf32>, tensor<2x1x1x7xf32>) -> tensor<2x5x2x2x64xf32>
// CHECK-NOT: batch_matmul
// CHECK-NOT: math.exp
func.func @batch(%q: tensor<8x5x64xf32>, %k: tensor<2x7x2x64xf32>, %v: tensor<2x7x2x64xf32>, %mask: tensor<2x7xf32>) -> tensor<8x5x64xf32> {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant 0.125 : f32
  %e_heads = tensor.empty() : tensor<2x2x2x7x64xf32>
  %k_heads = linalg.generic {
      indexing_maps = [affine_map<(b, h, g, s, d) -> (b, s, h, d)>, affine_map<(b, h, g, s, d) -> (b, h, g, s, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%k : tensor<2x7x2x64xf32>) outs(%e_heads : tensor<2x2x2x7x64xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<2x2x2x7x64xf32>
  %v_heads = linalg.generic {
      indexing_maps = [affine_map<(b, h, g, s, d) -> (b, s, h, d)>, affine_map<(b, h, g, s, d) -> (b, h, g, s, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%v : tensor<2x7x2x64xf32>) outs(%e_heads : tensor<2x2x2x7x64xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<2x2x2x7x64xf32>
  %k_flat = tensor.collapse_shape %k_heads [[0, 1, 2], [3], [4]] : tensor<2x2x2x7x64xf32> into tensor<8x7x64xf32>
  %v_flat = tensor.collapse_shape %v_heads [[0, 1, 2], [3], [4]] : tensor<2x2x2x7x64xf32> into tensor<8x7x64xf32>
  %e_t = tensor.empty() : tensor<8x64x7xf32>
  %k_t = linalg.transpose ins(%k_flat : tensor<8x7x64xf32>) outs(%e_t : tensor<8x64x7xf32>) permutation = [0, 2, 1]
  %e_s = tensor.empty() : tensor<8x5x7xf32>
  %z_s = linalg.fill ins(%zero : f32) outs(%e_s : tensor<8x5x7xf32>) -> tensor<8x5x7xf32>
  %products = linalg.batch_matmul ins(%q, %k_t : tensor<8x5x64xf32>, tensor<8x64x7xf32>) outs(%z_s : tensor<8x5x7xf32>) -> tensor<8x5x7xf32>
  %scores = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z floordiv 4, s)>, affine_map<(z, t, s) -> (z, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%products, %mask : tensor<8x5x7xf32>, tensor<2x7xf32>) outs(%e_s : tensor<8x5x7xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.mulf %x, %scale : f32
    %w = arith.addf %y, %m : f32
    linalg.yield %w : f32
  } -> tensor<8x5x7xf32>
  %e_r = tensor.empty() : tensor<8x5xf32>
  %least = linalg.fill ins(%low : f32) outs(%e_r : tensor<8x5xf32>) -> tensor<8x5xf32>
  %max = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%scores : tensor<8x5x7xf32>) outs(%least : tensor<8x5xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.maximumf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<8x5xf32>
  %exp = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>, affine_map<(z, t, s) -> (z, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%scores, %max : tensor<8x5x7xf32>, tensor<8x5xf32>) outs(%e_s : tensor<8x5x7xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.subf %x, %m : f32
    %w = math.exp %y : f32
    linalg.yield %w : f32
  } -> tensor<8x5x7xf32>
  %z_r = linalg.fill ins(%zero : f32) outs(%e_r : tensor<8x5xf32>) -> tensor<8x5xf32>
  %sum = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%exp : tensor<8x5x7xf32>) outs(%z_r : tensor<8x5xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<8x5xf32>
  %weights = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>, affine_map<(z, t, s) -> (z, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%exp, %sum : tensor<8x5x7xf32>, tensor<8x5xf32>) outs(%e_s : tensor<8x5x7xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.divf %x, %m : f32
    linalg.yield %y : f32
  } -> tensor<8x5x7xf32>
  %e_y = tensor.empty() : tensor<8x5x64xf32>
  %z_y = linalg.fill ins(%zero : f32) outs(%e_y : tensor<8x5x64xf32>) -> tensor<8x5x64xf32>
  %y = linalg.batch_matmul ins(%weights, %v_flat : tensor<8x5x7xf32>, tensor<8x7x64xf32>) outs(%z_y : tensor<8x5x64xf32>) -> tensor<8x5x64xf32>
  return %y : tensor<8x5x64xf32>
}

// -----

// Weights that are not divided by their sum stay, with the reason.
// CHECK-LABEL: func.func @undivided
// CHECK: linalg.batch_matmul ins
// CHECK: linalg.batch_matmul {mxc.contraction = {reason = "it is attention in another form: its weights are not divided by their sum"}}
func.func @undivided(%q: tensor<8x5x64xf32>, %k: tensor<2x7x2x64xf32>, %v: tensor<2x7x2x64xf32>, %mask: tensor<2x7xf32>) -> tensor<8x5x64xf32> {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %scale = arith.constant 0.125 : f32
  %e_heads = tensor.empty() : tensor<2x2x2x7x64xf32>
  %k_heads = linalg.generic {
      indexing_maps = [affine_map<(b, h, g, s, d) -> (b, s, h, d)>, affine_map<(b, h, g, s, d) -> (b, h, g, s, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%k : tensor<2x7x2x64xf32>) outs(%e_heads : tensor<2x2x2x7x64xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<2x2x2x7x64xf32>
  %v_heads = linalg.generic {
      indexing_maps = [affine_map<(b, h, g, s, d) -> (b, s, h, d)>, affine_map<(b, h, g, s, d) -> (b, h, g, s, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%v : tensor<2x7x2x64xf32>) outs(%e_heads : tensor<2x2x2x7x64xf32>) {
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  } -> tensor<2x2x2x7x64xf32>
  %k_flat = tensor.collapse_shape %k_heads [[0, 1, 2], [3], [4]] : tensor<2x2x2x7x64xf32> into tensor<8x7x64xf32>
  %v_flat = tensor.collapse_shape %v_heads [[0, 1, 2], [3], [4]] : tensor<2x2x2x7x64xf32> into tensor<8x7x64xf32>
  %e_t = tensor.empty() : tensor<8x64x7xf32>
  %k_t = linalg.transpose ins(%k_flat : tensor<8x7x64xf32>) outs(%e_t : tensor<8x64x7xf32>) permutation = [0, 2, 1]
  %e_s = tensor.empty() : tensor<8x5x7xf32>
  %z_s = linalg.fill ins(%zero : f32) outs(%e_s : tensor<8x5x7xf32>) -> tensor<8x5x7xf32>
  %products = linalg.batch_matmul ins(%q, %k_t : tensor<8x5x64xf32>, tensor<8x64x7xf32>) outs(%z_s : tensor<8x5x7xf32>) -> tensor<8x5x7xf32>
  %scores = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z floordiv 4, s)>, affine_map<(z, t, s) -> (z, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%products, %mask : tensor<8x5x7xf32>, tensor<2x7xf32>) outs(%e_s : tensor<8x5x7xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.mulf %x, %scale : f32
    %w = arith.addf %y, %m : f32
    linalg.yield %w : f32
  } -> tensor<8x5x7xf32>
  %e_r = tensor.empty() : tensor<8x5xf32>
  %least = linalg.fill ins(%low : f32) outs(%e_r : tensor<8x5xf32>) -> tensor<8x5xf32>
  %max = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%scores : tensor<8x5x7xf32>) outs(%least : tensor<8x5xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.maximumf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<8x5xf32>
  %exp = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>, affine_map<(z, t, s) -> (z, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%scores, %max : tensor<8x5x7xf32>, tensor<8x5xf32>) outs(%e_s : tensor<8x5x7xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.subf %x, %m : f32
    %w = math.exp %y : f32
    linalg.yield %w : f32
  } -> tensor<8x5x7xf32>
  %z_r = linalg.fill ins(%zero : f32) outs(%e_r : tensor<8x5xf32>) -> tensor<8x5xf32>
  %sum = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%exp : tensor<8x5x7xf32>) outs(%z_r : tensor<8x5xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<8x5xf32>
  %weights = linalg.generic {
      indexing_maps = [affine_map<(z, t, s) -> (z, t, s)>, affine_map<(z, t, s) -> (z, t)>, affine_map<(z, t, s) -> (z, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%exp, %sum : tensor<8x5x7xf32>, tensor<8x5xf32>) outs(%e_s : tensor<8x5x7xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.mulf %x, %m : f32
    linalg.yield %y : f32
  } -> tensor<8x5x7xf32>
  %e_y = tensor.empty() : tensor<8x5x64xf32>
  %z_y = linalg.fill ins(%zero : f32) outs(%e_y : tensor<8x5x64xf32>) -> tensor<8x5x64xf32>
  %y = linalg.batch_matmul ins(%weights, %v_flat : tensor<8x5x7xf32>, tensor<8x7x64xf32>) outs(%z_y : tensor<8x5x64xf32>) -> tensor<8x5x64xf32>
  return %y : tensor<8x5x64xf32>
}

// -----

// The numbers of sequences and tokens come with the call. A mask that compares the numbers of queries
// and keys is the causal one.
// CHECK-LABEL: util.func private @mxc.dense_attention
// CHECK-SAME: mxc.options = {causal, scale = 2.500000e-01 : f32}
// CHECK-LABEL: func.func @dynamic
// CHECK: util.call @mxc.dense_attention({{.*}}) : (tensor<?x?x4x1x16xf32>, tensor<?x?x4x16xf32>, tensor<?x?x4x16xf32>) -> tensor<?x?x4x1x16xf32>
// CHECK-NOT: math.exp
#cells = affine_map<(b, h, t, s) -> (b, h, t, s)>
#rows = affine_map<(b, h, t, s) -> (b, h, t)>
func.func @dynamic(%q: tensor<?x?x4x16xf32>, %k: tensor<?x?x4x16xf32>, %v: tensor<?x?x4x16xf32>) -> tensor<?x4x?x16xf32> {
  %zero = arith.constant 0.0 : f32
  %infinite = arith.constant 0xFF800000 : f32
  %low = arith.constant -1.0e9 : f32
  %scale = arith.constant 0.25 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %b = tensor.dim %q, %c0 : tensor<?x?x4x16xf32>
  %t = tensor.dim %q, %c1 : tensor<?x?x4x16xf32>
  %e_s = tensor.empty(%b, %t, %t) : tensor<?x4x?x?xf32>
  %z_s = linalg.fill ins(%zero : f32) outs(%e_s : tensor<?x4x?x?xf32>) -> tensor<?x4x?x?xf32>
  %products = linalg.generic {
      indexing_maps = [affine_map<(b, h, t, s, d) -> (b, t, h, d)>, affine_map<(b, h, t, s, d) -> (b, s, h, d)>, affine_map<(b, h, t, s, d) -> (b, h, t, s)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}
      ins(%q, %k : tensor<?x?x4x16xf32>, tensor<?x?x4x16xf32>) outs(%z_s : tensor<?x4x?x?xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %r = arith.addf %o, %p : f32
    linalg.yield %r : f32
  } -> tensor<?x4x?x?xf32>
  %scores = linalg.generic {indexing_maps = [#cells, #cells], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%products : tensor<?x4x?x?xf32>) outs(%e_s : tensor<?x4x?x?xf32>) {
  ^bb0(%x: f32, %o: f32):
    %query = linalg.index 2 : index
    %key = linalg.index 3 : index
    %seen = arith.cmpi sle, %key, %query : index
    %y = arith.mulf %x, %scale : f32
    %w = arith.select %seen, %y, %low : f32
    linalg.yield %w : f32
  } -> tensor<?x4x?x?xf32>
  %e_r = tensor.empty(%b, %t) : tensor<?x4x?xf32>
  %least = linalg.fill ins(%infinite : f32) outs(%e_r : tensor<?x4x?xf32>) -> tensor<?x4x?xf32>
  %max = linalg.generic {indexing_maps = [#cells, #rows], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%scores : tensor<?x4x?x?xf32>) outs(%least : tensor<?x4x?xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.maximumf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<?x4x?xf32>
  %exp = linalg.generic {indexing_maps = [#cells, #rows, #cells], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%scores, %max : tensor<?x4x?x?xf32>, tensor<?x4x?xf32>) outs(%e_s : tensor<?x4x?x?xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.subf %x, %m : f32
    %w = math.exp %y : f32
    linalg.yield %w : f32
  } -> tensor<?x4x?x?xf32>
  %z_r = linalg.fill ins(%zero : f32) outs(%e_r : tensor<?x4x?xf32>) -> tensor<?x4x?xf32>
  %sum = linalg.generic {indexing_maps = [#cells, #rows], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%exp : tensor<?x4x?x?xf32>) outs(%z_r : tensor<?x4x?xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<?x4x?xf32>
  %weights = linalg.generic {indexing_maps = [#cells, #rows, #cells], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%exp, %sum : tensor<?x4x?x?xf32>, tensor<?x4x?xf32>) outs(%e_s : tensor<?x4x?x?xf32>) {
  ^bb0(%x: f32, %m: f32, %o: f32):
    %y = arith.divf %x, %m : f32
    linalg.yield %y : f32
  } -> tensor<?x4x?x?xf32>
  %e_y = tensor.empty(%b, %t) : tensor<?x4x?x16xf32>
  %z_y = linalg.fill ins(%zero : f32) outs(%e_y : tensor<?x4x?x16xf32>) -> tensor<?x4x?x16xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(b, h, t, d, s) -> (b, h, t, s)>, affine_map<(b, h, t, d, s) -> (b, s, h, d)>, affine_map<(b, h, t, d, s) -> (b, h, t, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}
      ins(%weights, %v : tensor<?x4x?x?xf32>, tensor<?x?x4x16xf32>) outs(%z_y : tensor<?x4x?x16xf32>) {
  ^bb0(%x: f32, %w: f32, %o: f32):
    %p = arith.mulf %x, %w : f32
    %r = arith.addf %o, %p : f32
    linalg.yield %r : f32
  } -> tensor<?x4x?x16xf32>
  return %y : tensor<?x4x?x16xf32>
}
