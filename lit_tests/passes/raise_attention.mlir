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
