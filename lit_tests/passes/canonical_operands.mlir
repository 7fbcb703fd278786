// RUN: mxc opt %s --split-input-file --passes mxc-canonical-operands | filecheck %s

// Loops, operands, factors and sum in another order.
// CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
// CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK-DAG: #[[S:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
// CHECK-DAG: #[[O:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1)>
// CHECK-LABEL: @order
// CHECK: linalg.generic {indexing_maps = [#[[X]], #[[W]], #[[S]], #[[O]]], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
// CHECK-SAME: ins(%arg2, %arg1, %arg0 :
// CHECK-SAME: attrs = {mxc.name = "up"}
// CHECK-NEXT: ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f4E2M1FN, %[[C:.*]]: f8E8M0FNU, %[[T:.*]]: f32):
// CHECK-NEXT: %[[Y:.*]] = arith.scaling_extf %[[B]], %[[C]]
// CHECK-NEXT: %[[P:.*]] = arith.mulf %[[A]], %[[Y]]
// CHECK-NEXT: arith.addf %[[T]], %[[P]]
func.func @order(%s: tensor<8x2xf8E8M0FNU>, %w: tensor<8x2x32xf4E2M1FN>, %x: tensor<4x2x32xf32>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(kb, n, m, ko) -> (n, ko)>, affine_map<(kb, n, m, ko) -> (n, ko, kb)>, affine_map<(kb, n, m, ko) -> (m, ko, kb)>, affine_map<(kb, n, m, ko) -> (m, n)>],
      iterator_types = ["reduction", "parallel", "parallel", "reduction"]}
      ins(%s, %w, %x : tensor<8x2xf8E8M0FNU>, tensor<8x2x32xf4E2M1FN>, tensor<4x2x32xf32>) outs(%acc : tensor<4x8xf32>)
      attrs = {mxc.name = "up"} {
  ^bb0(%c: f8E8M0FNU, %b: f4E2M1FN, %a: f32, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %y, %a : f32
    %q = arith.addf %p, %o : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Both sides scaled, dequantized apart, in a batch: scales move behind the elements.
// CHECK-LABEL: @both_scaled
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]
// CHECK-SAME: ins(%arg0, %arg2, %arg1, %arg3 :
// CHECK-COUNT-2: arith.scaling_extf
// CHECK-NOT: arith.extf
func.func @both_scaled(%x: tensor<3x4x2x32xf8E5M2>, %xs: tensor<3x4x2xf8E8M0FNU>, %w: tensor<3x8x2x32xf4E2M1FN>, %s: tensor<3x8x2xf8E8M0FNU>, %acc: tensor<3x4x8xf32>) -> tensor<3x4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(b, m, n, ko, kb) -> (b, m, ko, kb)>, affine_map<(b, m, n, ko, kb) -> (b, m, ko)>, affine_map<(b, m, n, ko, kb) -> (b, n, ko, kb)>, affine_map<(b, m, n, ko, kb) -> (b, n, ko)>, affine_map<(b, m, n, ko, kb) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %xs, %w, %s : tensor<3x4x2x32xf8E5M2>, tensor<3x4x2xf8E8M0FNU>, tensor<3x8x2x32xf4E2M1FN>, tensor<3x8x2xf8E8M0FNU>) outs(%acc : tensor<3x4x8xf32>) {
  ^bb0(%a: f8E5M2, %as: f8E8M0FNU, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %a1 = arith.extf %a : f8E5M2 to f32
    %a2 = arith.extf %as : f8E8M0FNU to f32
    %l = arith.mulf %a2, %a1 : f32
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x8xf32>
  func.return %r : tensor<3x4x8xf32>
}

// -----

// A lone scale belongs to rhs: the sides change places, the result is transposed after.
// CHECK-LABEL: @weight_first
// CHECK: linalg.transpose ins(%arg3 : tensor<8x4xf32>) outs(%{{.*}} : tensor<4x8xf32>) permutation = [1, 0]
// CHECK: %[[R:.*]] = linalg.generic {{.*}} ins(%arg2, %arg0, %arg1 : {{.*}} outs(%{{.*}} : tensor<4x8xf32>)
// CHECK: linalg.transpose ins(%[[R]] : tensor<4x8xf32>) outs(%{{.*}} : tensor<8x4xf32>) permutation = [1, 0]
func.func @weight_first(%w: tensor<8x2x32xf6E3M2FN>, %s: tensor<8x2xf8E8M0FNU>, %x: tensor<4x2x32xf16>, %acc: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (m, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%w, %x, %s : tensor<8x2x32xf6E3M2FN>, tensor<4x2x32xf16>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<8x4xf32>) {
  ^bb0(%b: f6E3M2FN, %a: f16, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f6E3M2FN, f8E8M0FNU to f32
    %a1 = arith.extf %a : f16 to f32
    %p = arith.mulf %y, %a1 : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8x4xf32>
  func.return %r : tensor<8x4xf32>
}

// -----

// bf16 holds every value of mxfp4 that f32 holds: the detour goes.
// CHECK-LABEL: @exact_in_bf16
// CHECK: arith.scaling_extf {{.*}} : f4E2M1FN, f8E8M0FNU to f32
// CHECK-NEXT: arith.mulf
func.func @exact_in_bf16(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to bf16
    %z = arith.extf %y : bf16 to f32
    %p = arith.mulf %a, %z : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// f16 overflows where f32 does not: the program means what it says.
// CHECK-LABEL: @leaves_f16_alone
// CHECK: arith.scaling_extf {{.*}} to f16
func.func @leaves_f16_alone(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f16
    %z = arith.extf %y : f16 to f32
    %p = arith.mulf %a, %z : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Weights [K, N] and scales [K / 32, N] are transposed as bytes, and the module says so.
// CHECK: module attributes {mxc.notes = ["an operand of a product that is not stored by rows of the sum is transposed with each call"]}
// CHECK-LABEL: @columns
// CHECK: linalg.transpose ins(%{{.*}} : tensor<2x32x8xi8>) outs(%{{.*}} : tensor<8x2x32xi8>) permutation = [2, 0, 1]
// CHECK: %[[W:.*]] = flow.tensor.bitcast {{.*}} -> tensor<8x2x32xf8E4M3FN>
// CHECK: linalg.transpose ins(%{{.*}} : tensor<2x8xi8>) outs(%{{.*}} : tensor<8x2xi8>) permutation = [1, 0]
// CHECK: %[[S:.*]] = flow.tensor.bitcast {{.*}} -> tensor<8x2xf8E8M0FNU>
// CHECK: linalg.generic {{.*}} ins(%arg0, %[[W]], %[[S]] :
func.func @columns(%x: tensor<4x2x32xf32>, %w: tensor<2x32x8xf8E4M3FN>, %s: tensor<2x8xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (o, b, n)>, affine_map<(m, n, o, b) -> (o, n)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<2x32x8xf8E4M3FN>, tensor<2x8xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f8E4M3FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Nibbles of weights [K, N] are taken apart: a byte of the result is made of two, in 2 steps of d3.
// CHECK: #[[IN:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d2, d3, d4, d0)>
// CHECK: #[[OUT:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
// CHECK-LABEL: @columns_of_nibbles
// CHECK: %[[B:.*]] = flow.tensor.bitcast %arg1 : tensor<2x32x8xf4E2M1FN> -> tensor<2x32x4xi8>
// CHECK: %[[H:.*]] = tensor.expand_shape %[[B]] {{.*}} into tensor<2x16x2x4xi8>
// CHECK: %[[G:.*]] = linalg.generic {indexing_maps = [#[[IN]], #[[OUT]]], {{.*}} ins(%[[H]] : {{.*}} outs(%{{.*}} : tensor<4x2x2x16xi8>)
// CHECK: linalg.index 1
// CHECK: arith.shrui
// CHECK: linalg.index 4
// CHECK: arith.shli
// CHECK: %[[C:.*]] = tensor.collapse_shape %[[G]] {{.*}} into tensor<8x2x16xi8>
// CHECK: %[[W:.*]] = flow.tensor.bitcast %[[C]] : tensor<8x2x16xi8> -> tensor<8x2x32xf4E2M1FN>
// CHECK: linalg.generic {{.*}} ins(%arg0, %[[W]], %arg2 :
func.func @columns_of_nibbles(%x: tensor<4x2x32xf32>, %w: tensor<2x32x8xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (o, b, n)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<2x32x8xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// An odd number of columns shares bytes between rows: it stays, and CheckContractions says so.
// CHECK-LABEL: @odd_columns
// CHECK-NOT: linalg.index
// CHECK: return
func.func @odd_columns(%x: tensor<4x2x32xf32>, %w: tensor<2x32x7xf4E2M1FN>, %s: tensor<7x2xf8E8M0FNU>, %acc: tensor<4x7xf32>) -> tensor<4x7xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (o, b, n)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<2x32x7xf4E2M1FN>, tensor<7x2xf8E8M0FNU>) outs(%acc : tensor<4x7xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x7xf32>
  func.return %r : tensor<4x7xf32>
}

// -----

// What is rounded to bf16 on its way is moved as well, and its body stays.
// CHECK-LABEL: @rounded_columns
// CHECK: linalg.transpose ins(%{{.*}} : tensor<2x32x8xi8>) outs(%{{.*}} : tensor<8x2x32xi8>) permutation = [2, 0, 1]
// CHECK: linalg.generic {{.*}} ins(%arg0, %{{.*}}, %arg2 :
// CHECK-NEXT: ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f8E4M3FN, %[[C:.*]]: f8E8M0FNU, %[[T:.*]]: f32):
// CHECK: arith.scaling_extf %[[B]], %[[C]]
// CHECK: arith.truncf
func.func @rounded_columns(%x: tensor<4x2x32xf32>, %w: tensor<2x32x8xf8E4M3FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (o, b, n)>, affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%s, %w, %x : tensor<8x2xf8E8M0FNU>, tensor<2x32x8xf8E4M3FN>, tensor<4x2x32xf32>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%c: f8E8M0FNU, %b: f8E4M3FN, %a: f32, %o: f32):
    %y = arith.scaling_extf %b, %c : f8E4M3FN, f8E8M0FNU to f32
    %z = arith.truncf %y : f32 to bf16
    %z1 = arith.extf %z : bf16 to f32
    %p = arith.mulf %a, %z1 : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Constants [K, N] and [K / 32, N] become constants by rows: nothing is transposed, and there is no note.
// CHECK-LABEL: module {
// CHECK: @constants
// CHECK-DAG: arith.constant dense<[{{\[}}{{\[}}18, 84]], {{\[}}[52, 102]]]> : tensor<2x1x2xi8>
// CHECK-DAG: arith.constant dense<{{\[}}[127], [-128]]> : tensor<2x1xi8>
// CHECK-NOT: linalg.transpose
// CHECK: linalg.generic {{.*}} ins(%arg0, %{{.*}}, %{{.*}} : tensor<3x1x4xf32>, tensor<2x1x4xf4E2M1FN>, tensor<2x1xf8E8M0FNU>)
// CHECK-NOT: linalg.transpose
func.func @constants(%x: tensor<3x1x4xf32>, %acc: tensor<3x2xf32>) -> tensor<3x2xf32> {
  %w = arith.constant dense<[[[1.0, 2.0], [0.5, 1.5], [2.0, 4.0], [3.0, 4.0]]]> : tensor<1x4x2xf4E2M1FN>
  %bytes = arith.constant dense<[[127, -128]]> : tensor<1x2xi8>
  %s = flow.tensor.bitcast %bytes : tensor<1x2xi8> -> tensor<1x2xf8E8M0FNU>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (ko, kb, n)>, affine_map<(m, n, ko, kb) -> (ko, n)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<3x1x4xf32>, tensor<1x4x2xf4E2M1FN>, tensor<1x2xf8E8M0FNU>) outs(%acc : tensor<3x2xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x2xf32>
  func.return %r : tensor<3x2xf32>
}
