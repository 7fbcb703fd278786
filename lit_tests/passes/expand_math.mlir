// RUN: mxc opt %s --split-input-file --passes mxc-expand-math | filecheck %s
// RUN: mxc opt %s --split-input-file --passes "mxc-expand-math{fma=false}" | filecheck %s --check-prefix=PARTS

// The nearest integer of x / (pi / 2), and the angle less that in three parts.
// CHECK-LABEL: func.func @sine(
// CHECK: %[[T:.*]] = arith.mulf %arg0, %{{.*}} : f32
// CHECK: %[[A:.*]] = arith.addf %[[T]], %[[BIG:.*]] : f32
// CHECK: %[[Q:.*]] = arith.subf %[[A]], %{{.*}} : f32
// CHECK: %[[R1:.*]] = math.fma %[[Q]], %{{.*}}, %arg0 : f32
// CHECK: %[[R2:.*]] = math.fma %[[Q]], %{{.*}}, %[[R1]] : f32
// CHECK: %[[R3:.*]] = math.fma %[[Q]], %{{.*}}, %[[R2]] : f32
// CHECK-NOT: math.sin
// CHECK: return
// PARTS-LABEL: func.func @sine(
// PARTS-NOT: math.fma
// PARTS: return
func.func @sine(%x: f32) -> f32 {
  %y = math.sin %x : f32
  return %y : f32
}

// -----

// CHECK-LABEL: func.func @narrow(
// CHECK: %[[X:.*]] = arith.extf %arg0 : bf16 to f32
// CHECK: %[[Y:.*]] = arith.extf %arg1 : bf16 to f32
// CHECK: math.absf %[[X]] : f32
// CHECK-NOT: math.powf
// CHECK: %[[P:.*]] = arith.truncf %{{.*}} : f32 to bf16
// CHECK: return %[[P]] : bf16
func.func @narrow(%x: bf16, %y: bf16) -> bf16 {
  %p = math.powf %x, %y : bf16
  return %p : bf16
}

// -----

// CHECK-LABEL: func.func @others(
// CHECK-NEXT: math.exp
// CHECK-NEXT: math.cos %arg1 : f64
// CHECK-NEXT: math.sin %arg2 : tensor<4xf32>
func.func @others(%x: f32, %y: f64, %z: tensor<4xf32>) -> (f32, f64, tensor<4xf32>) {
  %a = math.exp %x : f32
  %b = math.cos %y : f64
  %c = math.sin %z : tensor<4xf32>
  return %a, %b, %c : f32, f64, tensor<4xf32>
}
