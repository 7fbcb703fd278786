// RUN: mxc opt %s --split-input-file --passes mxc-decode-elements | filecheck %s

// CHECK-LABEL: func.func @extend(
// CHECK: ^bb0(%[[E:.*]]: f8E4M3FN, %{{.*}}: f32):
// CHECK-DAG: %[[OTHER:.*]] = arith.constant -1 : i8
// CHECK-DAG: %[[NAN:.*]] = arith.constant 127 : i8
// CHECK-DAG: %[[BYTE:.*]] = arith.bitcast %[[E]] : f8E4M3FN to i8
// CHECK: %[[IS:.*]] = arith.cmpi eq, %[[BYTE]], %[[OTHER]] : i8
// CHECK: %[[CODE:.*]] = arith.select %[[IS]], %[[NAN]], %[[BYTE]] : i8
// CHECK: %[[F:.*]] = arith.bitcast %[[CODE]] : i8 to f8E4M3FN
// CHECK: arith.extf %[[F]] : f8E4M3FN to f32
#map = affine_map<(i) -> (i)>
func.func @extend(%x: tensor<8xf8E4M3FN>) -> tensor<8xf32> {
  %e = tensor.empty() : tensor<8xf32>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf8E4M3FN>) outs(%e : tensor<8xf32>) {
  ^bb0(%a: f8E4M3FN, %o: f32):
    %c = arith.extf %a : f8E4M3FN to f32
    linalg.yield %c : f32
  } -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @under_a_scale(
// CHECK: %[[F:.*]] = arith.bitcast %{{.*}} : i8 to f8E4M3FN
// CHECK: arith.scaling_extf %[[F]], %arg1 : f8E4M3FN, f8E8M0FNU to bf16
func.func @under_a_scale(%w: f8E4M3FN, %s: f8E8M0FNU) -> bf16 {
  %b = arith.scaling_extf %w, %s : f8E4M3FN, f8E8M0FNU to bf16
  return %b : bf16
}

// -----

// CHECK-LABEL: func.func @others(
// CHECK-NOT: arith.bitcast
func.func @others(%x: f8E5M2, %y: f4E2M1FN, %s: f8E8M0FNU, %z: f8E4M3FNUZ) -> (f32, f32, f32) {
  %a = arith.extf %x : f8E5M2 to f32
  %b = arith.scaling_extf %y, %s : f4E2M1FN, f8E8M0FNU to f32
  %c = arith.extf %z : f8E4M3FNUZ to f32
  return %a, %b, %c : f32, f32, f32
}

// -----

// CHECK-LABEL: func.func @to_f16(
// CHECK: %[[A:.*]] = arith.extf %arg0 : f4E2M1FN to f32
// CHECK-NEXT: %[[B:.*]] = arith.truncf %[[A]] : f32 to f16
// CHECK-NEXT: %[[C:.*]] = arith.scaling_extf %arg1, %arg2 : f8E5M2, f8E8M0FNU to f32
// CHECK-NEXT: %[[D:.*]] = arith.truncf %[[C]] : f32 to f16
// CHECK-NEXT: return %[[B]], %[[D]] : f16, f16
func.func @to_f16(%x: f4E2M1FN, %y: f8E5M2, %s: f8E8M0FNU) -> (f16, f16) {
  %a = arith.extf %x : f4E2M1FN to f16
  %b = arith.scaling_extf %y, %s : f8E5M2, f8E8M0FNU to f16
  return %a, %b : f16, f16
}
