// RUN: mxc opt %s --split-input-file --passes mxc-lower-to-cpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes mxc-choose-gpu-schedule,mxc-lower-to-gpu-kernels | filecheck %s

// What follows a product element by element and is left for another kernel says why, on CPUs and
// GPUs alike.

// An operand of groups of columns; the residual before it is computed in the kernel.
// CHECK-LABEL: func.func @groups_of_columns(
// CHECK: flow.dispatch @mxc_{{.*}}unfused = "it reads tensor<4x2xf32> along neither columns nor rows of the result"
// CHECK: linalg.generic
func.func @groups_of_columns(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>, %g: tensor<4x64xf32>, %h: tensor<4x2xf32>) -> tensor<4x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  %f = tensor.empty() : tensor<4x64xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y, %g : tensor<4x64xf32>, tensor<4x64xf32>) outs(%f : tensor<4x64xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %v = arith.addf %i, %j : f32
    linalg.yield %v : f32
  } -> tensor<4x64xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n floordiv 32)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%t, %h : tensor<4x64xf32>, tensor<4x2xf32>) outs(%f : tensor<4x64xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %v = arith.addf %i, %j : f32
    linalg.yield %v : f32
  } -> tensor<4x64xf32>
  func.return %z : tensor<4x64xf32>
}

// -----

// A result that is no float.
// CHECK-LABEL: func.func @to_integers(
// CHECK: flow.dispatch @mxc_{{.*}}unfused = "its result is i8; kernels store f32, bf16 and f16"
// CHECK: linalg.generic
func.func @to_integers(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>) -> tensor<4x64xi8> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  %f = tensor.empty() : tensor<4x64xi8>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<4x64xf32>) outs(%f : tensor<4x64xi8>) {
  ^bb0(%i: f32, %o: i8):
    %v = arith.fptosi %i : f32 to i8
    linalg.yield %v : i8
  } -> tensor<4x64xi8>
  func.return %z : tensor<4x64xi8>
}

// -----

// A mask by the numbers of rows.
// CHECK-LABEL: func.func @numbers_rows(
// CHECK: flow.dispatch @mxc_{{.*}}unfused = "it reads the number of a row"
// CHECK: linalg.generic
func.func @numbers_rows(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>) -> tensor<4x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  %f = tensor.empty() : tensor<4x64xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<4x64xf32>) outs(%f : tensor<4x64xf32>) {
  ^bb0(%i: f32, %o: f32):
    %n = linalg.index 0 : index
    %j = arith.index_cast %n : index to i32
    %k = arith.sitofp %j : i32 to f32
    %v = arith.addf %i, %k : f32
    linalg.yield %v : f32
  } -> tensor<4x64xf32>
  func.return %z : tensor<4x64xf32>
}

// -----

// Bits of a type that vectors widen.
// CHECK-LABEL: func.func @bits_of_bf16(
// CHECK: flow.dispatch @mxc_{{.*}}unfused = "arith.bitcast in it is not known on vectors of bf16, i16"
// CHECK: linalg.generic
func.func @bits_of_bf16(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>) -> tensor<4x64xbf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  %f = tensor.empty() : tensor<4x64xbf16>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<4x64xf32>) outs(%f : tensor<4x64xbf16>) {
  ^bb0(%i: f32, %o: bf16):
    %t = arith.truncf %i : f32 to bf16
    %b = arith.bitcast %t : bf16 to i16
    %c = arith.addi %b, %b : i16
    %v = arith.bitcast %c : i16 to bf16
    linalg.yield %v : bf16
  } -> tensor<4x64xbf16>
  func.return %z : tensor<4x64xbf16>
}

// -----

// Halves of the columns of a reshaped result.
// CHECK-LABEL: func.func @gate_behind_a_reshape(
// CHECK: flow.dispatch @mxc_{{.*}}unfused = "it joins halves of the columns, behind a reshape or another gate"
// CHECK: linalg.generic
func.func @gate_behind_a_reshape(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>) -> tensor<2x2x32xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  %y3 = tensor.expand_shape %y [[0, 1], [2]] output_shape [2, 2, 64] : tensor<4x64xf32> into tensor<2x2x64xf32>
  %l = tensor.extract_slice %y3[0, 0, 0] [2, 2, 32] [1, 1, 1] : tensor<2x2x64xf32> to tensor<2x2x32xf32>
  %h = tensor.extract_slice %y3[0, 0, 32] [2, 2, 32] [1, 1, 1] : tensor<2x2x64xf32> to tensor<2x2x32xf32>
  %f = tensor.empty() : tensor<2x2x32xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, j, n) -> (m, j, n)>, affine_map<(m, j, n) -> (m, j, n)>, affine_map<(m, j, n) -> (m, j, n)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%l, %h : tensor<2x2x32xf32>, tensor<2x2x32xf32>) outs(%f : tensor<2x2x32xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %v = arith.addf %i, %j : f32
    linalg.yield %v : f32
  } -> tensor<2x2x32xf32>
  func.return %z : tensor<2x2x32xf32>
}

// -----

// A sum over rows is no elementwise operation.
// CHECK-LABEL: func.func @sums(
// CHECK: flow.dispatch @mxc_
// CHECK-NOT: unfused
// CHECK: return
func.func @sums(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>) -> tensor<4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  %f = tensor.empty() : tensor<4xf32>
  %f0 = linalg.fill ins(%zero : f32) outs(%f : tensor<4xf32>) -> tensor<4xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>], iterator_types = ["parallel", "reduction"]}
      ins(%y : tensor<4x64xf32>) outs(%f0 : tensor<4xf32>) {
  ^bb0(%i: f32, %j: f32):
    %v = arith.addf %i, %j : f32
    linalg.yield %v : f32
  } -> tensor<4xf32>
  func.return %z : tensor<4xf32>
}

// -----

// Nothing follows.
// CHECK-LABEL: func.func @returned(
// CHECK: flow.dispatch @mxc_
// CHECK-NOT: unfused
// CHECK: return
func.func @returned(%x: tensor<4x2x32xf32>, %w: tensor<64x2x32xf4E2M1FN>, %s: tensor<64x2xf8E8M0FNU>) -> tensor<4x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) outs(%acc : tensor<4x64xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  func.return %y : tensor<4x64xf32>
}
