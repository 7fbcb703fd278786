// RUN: mxc opt %s --split-input-file --passes mxc-propagate-nan | filecheck %s

// CHECK-LABEL: @elementwise
// CHECK: linalg.generic
// CHECK: ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f32, %{{.*}}: f32):
// CHECK: %[[U:.*]] = arith.cmpf uno, %[[A]], %[[B]] : f32
// CHECK: %[[N:.*]] = arith.maxnumf %[[A]], %[[B]] : f32
// CHECK: %[[NAN:.*]] = arith.constant 0x7FC00000 : f32
// CHECK: %[[M:.*]] = arith.select %[[U]], %[[NAN]], %[[N]] : f32
// CHECK: arith.minnumf %[[M]],
// CHECK-NOT: imumf
func.func @elementwise(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %e = tensor.empty() : tensor<8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}
      ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.maximumf %a, %b : f32
    %c = arith.constant 7.0 : f32
    %n = arith.minimumf %m, %c : f32
    linalg.yield %n : f32
  } -> tensor<8xf32>
  func.return %r : tensor<8xf32>
}

// -----

// What says that it gives the other operand does.
// CHECK-LABEL: @as_the_program_says
// CHECK: arith.maxnumf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT: linalg.yield
func.func @as_the_program_says(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %e = tensor.empty() : tensor<8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}
      ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.maxnumf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<8xf32>
  func.return %r : tensor<8xf32>
}

// -----

// A reduction has one operation on what it accumulates.
// CHECK-LABEL: @reduction
// CHECK: %[[LEAST:.*]] = arith.constant -2147483648 : i32
// CHECK: %[[START:.*]] = linalg.fill ins(%[[LEAST]] : i32) outs({{.*}} : tensor<4xi32>)
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<4x64xf32>) outs(%[[START]] : tensor<4xi32>)
// CHECK: ^bb0(%[[A:.*]]: f32, %[[ACC:.*]]: i32):
// CHECK: %[[S:.*]] = arith.mulf %[[A]], %[[A]] : f32
// CHECK: %[[U:.*]] = arith.cmpf uno, %[[S]], %[[S]] : f32
// CHECK: arith.select %[[U]],
// CHECK: %[[K:.*]] = arith.xori
// CHECK: %[[M:.*]] = arith.maxsi %[[K]], %[[ACC]] : i32
// CHECK: linalg.yield %[[M]] : i32
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel"]} ins({{.*}}, %arg1 : tensor<4xi32>, tensor<4xf32>) outs({{.*}} : tensor<4xf32>)
// CHECK: arith.maxsi
func.func @reduction(%x: tensor<4x64xf32>, %init: tensor<4xf32>) -> tensor<4xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x64xf32>) outs(%init : tensor<4xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %s = arith.mulf %a, %a : f32
    %m = arith.maximumf %s, %acc : f32
    linalg.yield %m : f32
  } -> tensor<4xf32>
  func.return %r : tensor<4xf32>
}

// -----

// CHECK-LABEL: @named
// CHECK: arith.minsi {{.*}} : i16
// CHECK: arith.cmpf uno,
// CHECK: arith.maxnumf
// CHECK-NOT: linalg.elementwise
func.func @named(%x: tensor<4x64xbf16>, %init: tensor<4xbf16>, %y: tensor<4xbf16>) -> tensor<4xbf16> {
  %r = linalg.reduce { arith.minimumf } ins(%x : tensor<4x64xbf16>) outs(%init : tensor<4xbf16>) dimensions = [1]
  %e = tensor.empty() : tensor<4xbf16>
  %m = linalg.elementwise <max_signed> ins(%r, %y : tensor<4xbf16>, tensor<4xbf16>) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
  func.return %m : tensor<4xbf16>
}

// -----

// Two results of one loop: each has a comparison.
// CHECK-LABEL: @largest_and_where
// CHECK: ^bb0(%[[A:.*]]: f32, %[[V:.*]]: f32, %{{.*}}: i32):
// CHECK: arith.cmpf uno, %[[A]], %[[V]] : f32
// CHECK: arith.maxnumf %[[A]], %[[V]] : f32
func.func @largest_and_where(%x: tensor<64xf32>, %v: tensor<f32>, %n: tensor<i32>) -> (tensor<f32>, tensor<i32>) {
  %r:2 = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>, affine_map<(i) -> ()>],
      iterator_types = ["reduction"]}
      ins(%x : tensor<64xf32>) outs(%v, %n : tensor<f32>, tensor<i32>) {
  ^bb0(%a: f32, %b: f32, %at: i32):
    %i = linalg.index 0 : index
    %k = arith.index_cast %i : index to i32
    %m = arith.maximumf %a, %b : f32
    %c = arith.cmpf ogt, %a, %b : f32
    %w = arith.select %c, %k, %at : i32
    linalg.yield %m, %w : f32, i32
  } -> (tensor<f32>, tensor<i32>)
  func.return %r#0, %r#1 : tensor<f32>, tensor<i32>
}
