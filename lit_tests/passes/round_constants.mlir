// RUN: mxc opt %s --passes mxc-round-constants | filecheck %s

// 0.377 is between 0x3EC10624 and 0x3EC10625, and nearer to the latter.
// CHECK-LABEL: func.func @scaled(
// CHECK: %[[C:.*]] = arith.constant 3.770000e-01 : f32
// CHECK: arith.mulf %{{.*}}, %[[C]] : f32
// CHECK: arith.truncf %{{.*}} : f64 to f16
// CHECK: arith.truncf %{{.*}} : f64 to f32
#map = affine_map<(i) -> (i)>
func.func @scaled(%x: tensor<8xf32>, %d: f64) -> (tensor<8xf32>, f16, f32) {
  %e = tensor.empty() : tensor<8xf32>
  %n = arith.constant 0.377 : f64
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.truncf %n : f64 to f32
    %p = arith.mulf %a, %c : f32
    linalg.yield %p : f32
  } -> tensor<8xf32>
  %h = arith.truncf %n : f64 to f16
  %f = arith.truncf %d : f64 to f32
  return %y, %h, %f : tensor<8xf32>, f16, f32
}
