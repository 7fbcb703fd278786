// RUN: mxc opt %s --split-input-file --passes mxc-fuse-dequantize | filecheck %s

// The collapse becomes two loops, and nothing of the size of %d is left.
// CHECK: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK: #[[S:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
// CHECK-LABEL: @matmul_of_collapsed
// CHECK-NOT: tensor<8x2x32xf32>
// CHECK: %[[X:.*]] = tensor.expand_shape %arg0 {{.*}} into tensor<?x2x32xf32>
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[W]], #[[S]], {{.*}}]
// CHECK-SAME: ins(%[[X]], %arg1, %arg2 : tensor<?x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>)
// CHECK: arith.scaling_extf
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.addf
func.func @matmul_of_collapsed(%x: tensor<?x64xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %e = tensor.empty() : tensor<8x2x32xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  %c = tensor.collapse_shape %d [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %c : tensor<?x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<?x8xf32>) -> tensor<?x8xf32>
  func.return %r : tensor<?x8xf32>
}

// -----

// Extended apart and multiplied, through a transpose, for two users: each has its own copy.
// CHECK-LABEL: @used_twice
// CHECK-NOT: tensor<{{.*}}64x8xf32>
// CHECK: %[[X:.*]] = tensor.expand_shape %arg0
// CHECK: linalg.generic {{.*}} ins(%[[X]], %{{.*}}, %arg3 :
// CHECK: arith.extf
// CHECK: %[[Z:.*]] = tensor.expand_shape %arg1
// CHECK: linalg.generic {{.*}} ins(%[[Z]], %{{.*}}, %arg3 :
// CHECK: arith.extf
func.func @used_twice(%x: tensor<4x64xf32>, %z: tensor<4x64xf32>, %w: tensor<8x64xf8E4M3FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %se = tensor.empty() : tensor<8x2xf32>
  %sf = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%s : tensor<8x2xf8E8M0FNU>) outs(%se : tensor<8x2xf32>) {
  ^bb0(%a: f8E8M0FNU, %c: f32):
    %y = arith.extf %a : f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2xf32>
  %e = tensor.empty() : tensor<8x64xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %sf : tensor<8x64xf8E4M3FN>, tensor<8x2xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f32, %c: f32):
    %x1 = arith.extf %a : f8E4M3FN to f32
    %y = arith.mulf %x1, %b : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %te = tensor.empty() : tensor<64x8xf32>
  %t = linalg.transpose ins(%d : tensor<8x64xf32>) outs(%te : tensor<64x8xf32>) permutation = [1, 0]
  %r = linalg.matmul ins(%x, %t : tensor<4x64xf32>, tensor<64x8xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  %q = linalg.matmul ins(%z, %t : tensor<4x64xf32>, tensor<64x8xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r, %q : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// No reduction reads it: the dequantized tensor is what the program is asked for.
// CHECK-LABEL: @leaves_results_alone
// CHECK: %[[D:.*]] = linalg.generic
// CHECK: return %[[D]]
func.func @leaves_results_alone(%w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %e: tensor<8x2x32xf32>) -> tensor<8x2x32xf32> {
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  func.return %d : tensor<8x2x32xf32>
}

// -----

// A weight that is no elements and scales: fusing it would be another pass's decision.
// CHECK-LABEL: @leaves_activations_alone
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: linalg.matmul
func.func @leaves_activations_alone(%x: tensor<4x64xf32>, %w: tensor<64x8xf32>, %e: tensor<4x64xf32>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %d = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x64xf32>) outs(%e : tensor<4x64xf32>) {
  ^bb0(%a: f32, %c: f32):
    %y = math.exp %a : f32
    linalg.yield %y : f32
  } -> tensor<4x64xf32>
  %r = linalg.matmul ins(%d, %w : tensor<4x64xf32>, tensor<64x8xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Scales with a dimension of one element, as exports of torch have them, are read without it.
// CHECK-LABEL: @scales_with_a_dimension_of_one
// CHECK-NOT: tensor<8x2x32xf32>
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %arg1, %arg2 : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>)
func.func @scales_with_a_dimension_of_one(%x: tensor<4x64xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %one = tensor.expand_shape %s [[0], [1, 2]] output_shape [8, 2, 1] : tensor<8x2xf8E8M0FNU> into tensor<8x2x1xf8E8M0FNU>
  %e = tensor.empty() : tensor<8x2x32xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko, 0)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %one : tensor<8x2x32xf4E2M1FN>, tensor<8x2x1xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  %c = tensor.collapse_shape %d [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %c : tensor<4x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// mxint8: bytes under the scale of their block.
// CHECK-LABEL: @bytes
// CHECK-NOT: tensor<8x64xf32>
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}}, %arg2 : tensor<4x2x32xf32>, tensor<8x2x32xi8>, tensor<8x2xf8E8M0FNU>)
// CHECK: arith.sitofp
func.func @bytes(%x: tensor<4x64xf32>, %w: tensor<8x64xi8>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<8x64xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %s : tensor<8x64xi8>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: i8, %b: f8E8M0FNU, %c: f32):
    %step = arith.constant 1.5625e-02 : f32
    %whole = arith.sitofp %a : i8 to f32
    %value = arith.mulf %whole, %step : f32
    %scale = arith.extf %b : f8E8M0FNU to f32
    %y = arith.mulf %value, %scale : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %d : tensor<4x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Elements by their blocks under a float of each scale, of 32 on one side and of 16 on the other.
// CHECK-LABEL: @blocks_of_two_sizes
// CHECK-NOT: tensor<8x4x16xf32>
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]}
// CHECK-SAME: ins(%{{.*}}, %arg1, %{{.*}}, %{{.*}} : tensor<4x2x2x16xf8E5M2>, tensor<4x2xf8E8M0FNU>, tensor<8x2x2x16xf4E2M1FN>, tensor<8x2x2xf8E4M3FN>)
func.func @blocks_of_two_sizes(%x: tensor<4x64xf8E5M2>, %xs: tensor<4x2xf8E8M0FNU>, %w: tensor<8x64xf4E2M1FN>, %ws: tensor<8x4xf8E4M3FN>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x64xf32>
  %wide = linalg.generic {indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x64xf8E5M2>) outs(%e : tensor<4x64xf32>) {
  ^bb0(%a: f8E5M2, %o: f32):
    %y = arith.extf %a : f8E5M2 to f32
    linalg.yield %y : f32
  } -> tensor<4x64xf32>
  %xb = tensor.expand_shape %wide [[0], [1, 2]] output_shape [4, 2, 32] : tensor<4x64xf32> into tensor<4x2x32xf32>
  %eb = tensor.empty() : tensor<4x2x32xf32>
  %xd = linalg.generic {indexing_maps = [affine_map<(m, o, i) -> (m, o, i)>, affine_map<(m, o, i) -> (m, o)>, affine_map<(m, o, i) -> (m, o, i)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%xb, %xs : tensor<4x2x32xf32>, tensor<4x2xf8E8M0FNU>) outs(%eb : tensor<4x2x32xf32>) {
  ^bb0(%a: f32, %b: f8E8M0FNU, %o: f32):
    %s = arith.extf %b : f8E8M0FNU to f32
    %y = arith.mulf %a, %s : f32
    linalg.yield %y : f32
  } -> tensor<4x2x32xf32>
  %xc = tensor.collapse_shape %xd [[0], [1, 2]] : tensor<4x2x32xf32> into tensor<4x64xf32>
  %f = tensor.empty() : tensor<8x64xf32>
  %wwide = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%w : tensor<8x64xf4E2M1FN>) outs(%f : tensor<8x64xf32>) {
  ^bb0(%a: f4E2M1FN, %o: f32):
    %y = arith.extf %a : f4E2M1FN to f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %wb = tensor.expand_shape %wwide [[0], [1, 2]] output_shape [8, 4, 16] : tensor<8x64xf32> into tensor<8x4x16xf32>
  %fb = tensor.empty() : tensor<8x4x16xf32>
  %wd = linalg.generic {indexing_maps = [affine_map<(n, o, i) -> (n, o, i)>, affine_map<(n, o, i) -> (n, o)>, affine_map<(n, o, i) -> (n, o, i)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%wb, %ws : tensor<8x4x16xf32>, tensor<8x4xf8E4M3FN>) outs(%fb : tensor<8x4x16xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %o: f32):
    %s = arith.extf %b : f8E4M3FN to f32
    %y = arith.mulf %a, %s : f32
    linalg.yield %y : f32
  } -> tensor<8x4x16xf32>
  %wc = tensor.collapse_shape %wd [[0], [1, 2]] : tensor<8x4x16xf32> into tensor<8x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%xc, %wc : tensor<4x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Float scales that are copied to each element are read where they are.
// CHECK-LABEL: @copied_float_scales
// CHECK-NOT: linalg.broadcast
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1, %arg2 : tensor<4x64xf32>, tensor<16x64xf8E4M3FN>, tensor<16x2xf32>)
func.func @copied_float_scales(%x: tensor<4x64xf32>, %w: tensor<16x64xf8E4M3FN>, %s: tensor<16x2xf32>, %acc: tensor<4x16xf32>) -> tensor<4x16xf32> {
  %e = tensor.empty() : tensor<16x64xf32>
  %wide = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%w : tensor<16x64xf8E4M3FN>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%code: f8E4M3FN, %o: f32):
    %y = arith.extf %code : f8E4M3FN to f32
    linalg.yield %y : f32
  } -> tensor<16x64xf32>
  %b = tensor.empty() : tensor<16x2x32xf32>
  %copy = linalg.broadcast ins(%s : tensor<16x2xf32>) outs(%b : tensor<16x2x32xf32>) dimensions = [2]
  %flat = tensor.collapse_shape %copy [[0], [1, 2]] : tensor<16x2x32xf32> into tensor<16x64xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%wide, %flat : tensor<16x64xf32>, tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%value: f32, %scale: f32, %o: f32):
    %y = arith.mulf %value, %scale : f32
    linalg.yield %y : f32
  } -> tensor<16x64xf32>
  %r = linalg.matmul
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %d : tensor<4x64xf32>, tensor<16x64xf32>) outs(%acc : tensor<4x16xf32>) -> tensor<4x16xf32>
  func.return %r : tensor<4x16xf32>
}

// -----

// A batch of one row each, whose row is collapsed after it is dequantized: a dimension without a loop goes.
// CHECK-LABEL: @batch_of_rows
// CHECK: %[[X:.*]] = tensor.collapse_shape %arg0 {{\[}}[0], [1, 2]] : tensor<4x1x64xf4E2M1FN> into tensor<4x64xf4E2M1FN>
// CHECK: %[[E:.*]] = tensor.expand_shape %[[X]] {{\[}}[0], [1, 2]] output_shape [4, 2, 32]
// CHECK: %[[S:.*]] = tensor.collapse_shape %arg1 {{\[}}[0], [1, 2]] : tensor<4x1x2xf8E8M0FNU> into tensor<4x2xf8E8M0FNU>
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}}, %[[E]], %[[S]] : tensor<4x8x2x32xf4E2M1FN>, tensor<4x8x2xf8E8M0FNU>, tensor<4x2x32xf4E2M1FN>, tensor<4x2xf8E8M0FNU>)
// CHECK-NOT: linalg.batch_matvec
#rows = affine_map<(z, m, k) -> (z, m, k)>
#blocks = affine_map<(z, m, k) -> (z, m, k floordiv 32)>
func.func @batch_of_rows(%x: tensor<4x1x64xf4E2M1FN>, %xs: tensor<4x1x2xf8E8M0FNU>, %w: tensor<4x8x64xf4E2M1FN>, %ws: tensor<4x8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %xe = tensor.empty() : tensor<4x1x64xf32>
  %xd = linalg.generic {indexing_maps = [#rows, #blocks, #rows], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %xs : tensor<4x1x64xf4E2M1FN>, tensor<4x1x2xf8E8M0FNU>) outs(%xe : tensor<4x1x64xf32>) {
  ^bb0(%b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<4x1x64xf32>
  %we = tensor.empty() : tensor<4x8x64xf32>
  %wd = linalg.generic {indexing_maps = [#rows, #blocks, #rows], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %ws : tensor<4x8x64xf4E2M1FN>, tensor<4x8x2xf8E8M0FNU>) outs(%we : tensor<4x8x64xf32>) {
  ^bb0(%b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<4x8x64xf32>
  %xc = tensor.collapse_shape %xd [[0, 1], [2]] : tensor<4x1x64xf32> into tensor<4x64xf32>
  %r = linalg.batch_matvec ins(%wd, %xc : tensor<4x8x64xf32>, tensor<4x64xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// A row that is collapsed after it is dequantized, of one block and of two.
// CHECK-LABEL: @row_of_one_block
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction", "reduction"]
// CHECK: arith.scaling_extf
// CHECK-NOT: linalg.matvec
#rows = affine_map<(m, k) -> (m, k)>
#blocks = affine_map<(m, k) -> (m, k floordiv 32)>
func.func @row_of_one_block(%x: tensor<1x32xf8E4M3FN>, %xs: tensor<1x1xf8E8M0FNU>, %w: tensor<8x32xf32>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %xe = tensor.empty() : tensor<1x32xf32>
  %xd = linalg.generic {indexing_maps = [#rows, #blocks, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%x, %xs : tensor<1x32xf8E4M3FN>, tensor<1x1xf8E8M0FNU>) outs(%xe : tensor<1x32xf32>) {
  ^bb0(%b: f8E4M3FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f8E4M3FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<1x32xf32>
  %xc = tensor.collapse_shape %xd [[0, 1]] : tensor<1x32xf32> into tensor<32xf32>
  %r = linalg.matvec ins(%w, %xc : tensor<8x32xf32>, tensor<32xf32>) outs(%acc : tensor<8xf32>) -> tensor<8xf32>
  func.return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: @row_of_two_blocks
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction", "reduction", "reduction"]
// CHECK: arith.scaling_extf
// CHECK-NOT: linalg.matvec
#rows = affine_map<(m, k) -> (m, k)>
#blocks = affine_map<(m, k) -> (m, k floordiv 32)>
func.func @row_of_two_blocks(%x: tensor<1x64xf8E4M3FN>, %xs: tensor<1x2xf8E8M0FNU>, %w: tensor<8x64xf32>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %xe = tensor.empty() : tensor<1x64xf32>
  %xd = linalg.generic {indexing_maps = [#rows, #blocks, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%x, %xs : tensor<1x64xf8E4M3FN>, tensor<1x2xf8E8M0FNU>) outs(%xe : tensor<1x64xf32>) {
  ^bb0(%b: f8E4M3FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f8E4M3FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<1x64xf32>
  %xc = tensor.collapse_shape %xd [[0, 1]] : tensor<1x64xf32> into tensor<64xf32>
  %r = linalg.matvec ins(%w, %xc : tensor<8x64xf32>, tensor<64xf32>) outs(%acc : tensor<8xf32>) -> tensor<8xf32>
  func.return %r : tensor<8xf32>
}

// -----

// A dequantized weight of which only some rows are read is dequantized before.
// CHECK-LABEL: @some_rows
// CHECK: arith.scaling_extf
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]
// CHECK-NOT: arith.scaling_extf
#rows = affine_map<(n, k) -> (n, k)>
#blocks = affine_map<(n, k) -> (n, k floordiv 32)>
func.func @some_rows(%x: tensor<4x64xf32>, %w: tensor<16x64xf4E2M1FN>, %s: tensor<16x2xf8E8M0FNU>, %acc: tensor<4x16xf32>) -> tensor<4x16xf32> {
  %e = tensor.empty() : tensor<16x64xf32>
  %d = linalg.generic {indexing_maps = [#rows, #blocks, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%w, %s : tensor<16x64xf4E2M1FN>, tensor<16x2xf8E8M0FNU>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<16x64xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n floordiv 4, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %d : tensor<4x64xf32>, tensor<16x64xf32>) outs(%acc : tensor<4x16xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x16xf32>
  func.return %r : tensor<4x16xf32>
}
