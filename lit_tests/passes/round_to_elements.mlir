// RUN: mxc opt %s --split-input-file --passes mxc-round-to-elements | filecheck %s
// RUN: mxc opt %s --split-input-file --passes mxc-round-to-elements{gpu=true} | filecheck %s --check-prefix GPU
// RUN: mxc opt %s --split-input-file --passes 'mxc-round-to-elements{gpu=true scales=true}' | filecheck %s --check-prefix SCALES

// GPU-LABEL: func.func @truncate(
// GPU-NOT: math.absf
// GPU: arith.truncf %{{.*}} : f32 to f8E4M3FN
// From 15/16 of the least normal number on, what is below is that number.
// CHECK-LABEL: func.func @truncate(
// CHECK: ^bb0(%[[X:.*]]: f32, %{{.*}}: f8E4M3FN):
// CHECK-DAG: %[[FROM:.*]] = arith.constant 0.0146484375 : f32
// CHECK-DAG: %[[TO:.*]] = arith.constant 1.562500e-02 : f32
// CHECK: %[[M:.*]] = math.absf %[[X]]
// CHECK: %[[R:.*]] = arith.cmpf oge, %[[M]], %[[FROM]]
// CHECK: %[[B:.*]] = arith.cmpf olt, %[[M]], %[[TO]]
// CHECK: %[[C:.*]] = arith.andi %[[R]], %[[B]]
// CHECK: %[[N:.*]] = math.copysign %[[TO]], %[[X]]
// CHECK: %[[S:.*]] = arith.select %[[C]], %[[N]], %[[X]]
// CHECK: arith.truncf %[[S]] : f32 to f8E4M3FN
#map = affine_map<(i) -> (i)>
func.func @truncate(%x: tensor<8xf32>) -> tensor<8xf8E4M3FN> {
  %e = tensor.empty() : tensor<8xf8E4M3FN>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xf8E4M3FN>) {
  ^bb0(%a: f32, %o: f8E4M3FN):
    %c = arith.truncf %a : f32 to f8E4M3FN
    linalg.yield %c : f8E4M3FN
  } -> tensor<8xf8E4M3FN>
  return %y : tensor<8xf8E4M3FN>
}

// -----

// On a GPU the code is the number of bounds that the magnitude has reached, and the sign.
// GPU-LABEL: func.func @under_a_scale(
// GPU: arith.cmpi eq, %{{.*}}, %{{.*}} : i8
// GPU: %[[Q:.*]] = arith.divf
// GPU: %[[M:.*]] = math.absf %[[Q]]
// GPU: arith.cmpf ogt, %[[M]], %{{.*}} : f32
// GPU: arith.cmpf oge, %[[M]], %{{.*}} : f32
// GPU: %[[BITS:.*]] = arith.bitcast %[[Q]] : f32 to i32
// GPU: arith.cmpi slt, %[[BITS]], %
// GPU: %[[CODE:.*]] = arith.select
// GPU: arith.bitcast %[[CODE]] : i4 to f4E2M1FN
// SCALES-LABEL: func.func @under_a_scale(
// SCALES: arith.scaling_truncf
// CHECK-LABEL: func.func @under_a_scale(
// CHECK: ^bb0(%[[X:.*]]: f16, %[[S:.*]]: f8E8M0FNU, %{{.*}}: f4E2M1FN):
// CHECK: %[[W:.*]] = arith.extf %[[X]] : f16 to f32
// CHECK: %[[F:.*]] = arith.extf %[[S]] : f8E8M0FNU to f32
// CHECK: %[[BYTE:.*]] = arith.bitcast %[[S]] : f8E8M0FNU to i8
// CHECK: %[[LEAST:.*]] = arith.cmpi eq, %[[BYTE]], %{{.*}} : i8
// CHECK: %[[BY:.*]] = arith.select %[[LEAST]], %{{.*}}, %[[F]] : f32
// CHECK: %[[TWICE:.*]] = arith.addf %[[W]], %[[W]] : f32
// CHECK: %[[OF:.*]] = arith.select %[[LEAST]], %[[TWICE]], %[[W]] : f32
// CHECK: %[[Q:.*]] = arith.divf %[[OF]], %[[BY]] : f32
// CHECK: math.absf %[[Q]]
// CHECK: arith.truncf %{{.*}} : f32 to f4E2M1FN
// CHECK-NOT: arith.scaling_truncf
#map = affine_map<(i) -> (i)>
func.func @under_a_scale(%x: tensor<8xf16>, %s: tensor<8xf8E8M0FNU>) -> tensor<8xf4E2M1FN> {
  %e = tensor.empty() : tensor<8xf4E2M1FN>
  %y = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%x, %s : tensor<8xf16>, tensor<8xf8E8M0FNU>) outs(%e : tensor<8xf4E2M1FN>) {
  ^bb0(%a: f16, %b: f8E8M0FNU, %o: f4E2M1FN):
    %c = arith.scaling_truncf %a, %b : f16, f8E8M0FNU to f4E2M1FN
    linalg.yield %c : f4E2M1FN
  } -> tensor<8xf4E2M1FN>
  return %y : tensor<8xf4E2M1FN>
}

// -----

// CHECK-LABEL: func.func @other_elements(
// CHECK: arith.constant 0.0146484375 : f32
// CHECK: arith.constant 0.2421875 : f32
// CHECK: arith.constant 9.15527343E-4 : f32
func.func @other_elements(%x: f32) -> (f8E4M3, f8E3M4, f8E4M3B11FNUZ) {
  %a = arith.truncf %x : f32 to f8E4M3
  %b = arith.truncf %x : f32 to f8E3M4
  %c = arith.truncf %x : f32 to f8E4M3B11FNUZ
  return %a, %b, %c : f8E4M3, f8E3M4, f8E4M3B11FNUZ
}

// -----

// Floats of 16 bits, and scales.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: math.absf
func.func @others(%x: f32) -> (bf16, f8E8M0FNU) {
  %a = arith.truncf %x : f32 to bf16
  %b = arith.truncf %x : f32 to f8E8M0FNU
  return %a, %b : bf16, f8E8M0FNU
}
