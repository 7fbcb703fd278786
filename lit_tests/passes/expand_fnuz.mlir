// RUN: mxc opt %s --split-input-file --passes mxc-expand-fnuz | filecheck %s

// 240 is the code 127, NaN the code 128, the least normal number 2^-7.
// CHECK-LABEL: func.func @truncate(
// CHECK: ^bb0(%[[X:.*]]: f32, %{{.*}}: f8E4M3FNUZ):
// CHECK: %[[BITS:.*]] = arith.bitcast %[[X]] : f32 to i32
// CHECK: arith.cmpi slt, %{{.*}}, %{{.*}} : i32
// CHECK: arith.cmpi sgt, %{{.*}}, %{{.*}} : i32
// CHECK: %[[BYTE:.*]] = arith.trunci %{{.*}} : i32 to i8
// CHECK: %[[E:.*]] = arith.bitcast %[[BYTE]] : i8 to f8E4M3FNUZ
// CHECK: linalg.yield %[[E]]
#map = affine_map<(i) -> (i)>
func.func @truncate(%x: tensor<8xf32>) -> tensor<8xf8E4M3FNUZ> {
  %e = tensor.empty() : tensor<8xf8E4M3FNUZ>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xf8E4M3FNUZ>) {
  ^bb0(%a: f32, %o: f8E4M3FNUZ):
    %c = arith.truncf %a : f32 to f8E4M3FNUZ
    linalg.yield %c : f8E4M3FNUZ
  } -> tensor<8xf8E4M3FNUZ>
  return %y : tensor<8xf8E4M3FNUZ>
}

// -----

// CHECK-LABEL: func.func @extend(
// CHECK: ^bb0(%[[E:.*]]: f8E5M2FNUZ, %{{.*}}: f16):
// CHECK: %[[BYTE:.*]] = arith.bitcast %[[E]] : f8E5M2FNUZ to i8
// CHECK: arith.extui %[[BYTE]] : i8 to i32
// CHECK: %[[VALUE:.*]] = arith.bitcast %{{.*}} : i32 to f32
// CHECK: arith.truncf %[[VALUE]] : f32 to f16
#map = affine_map<(i) -> (i)>
func.func @extend(%x: tensor<8xf8E5M2FNUZ>) -> tensor<8xf16> {
  %e = tensor.empty() : tensor<8xf16>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf8E5M2FNUZ>) outs(%e : tensor<8xf16>) {
  ^bb0(%a: f8E5M2FNUZ, %o: f16):
    %c = arith.extf %a : f8E5M2FNUZ to f16
    linalg.yield %c : f16
  } -> tensor<8xf16>
  return %y : tensor<8xf16>
}

// -----

// CHECK-LABEL: func.func @under_scales(
// CHECK-NOT: arith.scaling
// CHECK: arith.divf
// CHECK: arith.mulf
// CHECK-NOT: arith.scaling
// CHECK: return
func.func @under_scales(%x: f32, %s: f8E8M0FNU, %w: f8E4M3FNUZ) -> (f8E4M3FNUZ, f32) {
  %a = arith.scaling_truncf %x, %s : f32, f8E8M0FNU to f8E4M3FNUZ
  %b = arith.scaling_extf %w, %s : f8E4M3FNUZ, f8E8M0FNU to f32
  return %a, %b : f8E4M3FNUZ, f32
}

// -----

// CHECK-LABEL: func.func @others(
// CHECK-NEXT: arith.truncf
// CHECK-NEXT: arith.extf
func.func @others(%x: f32, %e: f8E4M3FN) -> (f8E5M2, f32) {
  %a = arith.truncf %x : f32 to f8E5M2
  %b = arith.extf %e : f8E4M3FN to f32
  return %a, %b : f8E5M2, f32
}
