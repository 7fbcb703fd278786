// RUN: mxc opt %s --passes mxc-lower-dequantize-to-gpu-kernels | filecheck %s

// Two lanes a block, with 16 elements each: 12 bytes, of which a conversion takes 24.
// CHECK: stream.executable private @mxc_dequantize_mxfp6e2m3_bf16_512 {
// CHECK: vector.load {{.*}} vector<3xi32>
// CHECK: rocdl.cvt.scalef32.pk32.f32.fp6
// CHECK: arith.truncf {{.*}} : vector<16xf32> to vector<16xbf16>
// CHECK: vector.store {{.*}} vector<16xbf16>
// CHECK-LABEL: func.func @to_bf16(
// CHECK-NOT: linalg.generic
// CHECK: flow.dispatch @mxc_dequantize_mxfp6e2m3_bf16_512::@mxc_dequantize_mxfp6e2m3_bf16_512(%{{.*}}, %{{.*}}) : (tensor<96xi32>, tensor<16xi8>) -> tensor<512xbf16>
func.func @to_bf16(%x: tensor<4x4x32xf6E2M3FN>, %s: tensor<4x4xf8E8M0FNU>) -> tensor<4x4x32xbf16> {
  %e = tensor.empty() : tensor<4x4x32xbf16>
  %y = linalg.generic {indexing_maps = [affine_map<(r, o, b) -> (r, o, b)>, affine_map<(r, o, b) -> (r, o)>, affine_map<(r, o, b) -> (r, o, b)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %s : tensor<4x4x32xf6E2M3FN>, tensor<4x4xf8E8M0FNU>) outs(%e : tensor<4x4x32xbf16>) {
  ^bb0(%a: f6E2M3FN, %b: f8E8M0FNU, %o: bf16):
    %v = arith.scaling_extf %a, %b : f6E2M3FN, f8E8M0FNU to f32
    %w = arith.truncf %v : f32 to bf16
    linalg.yield %w : bf16
  } -> tensor<4x4x32xbf16>
  func.return %y : tensor<4x4x32xbf16>
}

// Rows that come with the call: their blocks are the workload.
// CHECK-LABEL: func.func @rows(
// CHECK: flow.dispatch @mxc_dequantize_mxfp6e3m2_f32_D::@mxc_dequantize_mxfp6e3m2_f32_D[%[[COUNT:.*]]](%{{.*}}, %{{.*}}, %[[COUNT]])
func.func @rows(%x: tensor<?x4x32xf6E3M2FN>, %s: tensor<?x4xf8E8M0FNU>) -> tensor<?x4x32xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x4x32xf6E3M2FN>
  %e = tensor.empty(%m) : tensor<?x4x32xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(r, o, b) -> (r, o, b)>, affine_map<(r, o, b) -> (r, o)>, affine_map<(r, o, b) -> (r, o, b)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %s : tensor<?x4x32xf6E3M2FN>, tensor<?x4xf8E8M0FNU>) outs(%e : tensor<?x4x32xf32>) {
  ^bb0(%a: f6E3M2FN, %b: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %a, %b : f6E3M2FN, f8E8M0FNU to f32
    linalg.yield %v : f32
  } -> tensor<?x4x32xf32>
  func.return %y : tensor<?x4x32xf32>
}

// IREE loads elements of 4 bits.
// CHECK-LABEL: func.func @four_bits(
// CHECK: linalg.generic
// CHECK-NOT: flow.dispatch
func.func @four_bits(%x: tensor<4x4x32xf4E2M1FN>, %s: tensor<4x4xf8E8M0FNU>) -> tensor<4x4x32xf32> {
  %e = tensor.empty() : tensor<4x4x32xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(r, o, b) -> (r, o, b)>, affine_map<(r, o, b) -> (r, o)>, affine_map<(r, o, b) -> (r, o, b)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %s : tensor<4x4x32xf4E2M1FN>, tensor<4x4xf8E8M0FNU>) outs(%e : tensor<4x4x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %v : f32
  } -> tensor<4x4x32xf32>
  func.return %y : tensor<4x4x32xf32>
}
