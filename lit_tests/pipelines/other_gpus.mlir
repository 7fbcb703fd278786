// RUN: mxc opt %s --target gfx942 --to kernels | filecheck %s --check-prefix=KERNELS
// RUN: mxc opt %s --target gfx1201 --to kernels | filecheck %s --check-prefix=WMMA
// RUN: mxc opt %s --target gfx1151 --to kernels | filecheck %s --check-prefix=TWICE
// RUN: mxc opt %s --target gfx1250 --to kernels | filecheck %s --check-prefix=SCALED
// RUN: mxc opt %s --target gfx942 --to form-dispatches | filecheck %s --check-prefix=FORM
// RUN: mxc opt %s --target gfx942 --to lower | filecheck %s --check-prefix=LOWER

// No instruction takes scales: both sides become bf16 in registers, by a table (f4), by
// conversions of FNUZ numbers (f8).
// KERNELS: workgroup_size = [64, 1, 1] subgroup_size = 64
// KERNELS: stream.executable private @mxc_mxfp4_mxfp8e4m3_1x32x64x128 {
// KERNELS-NOT: cvt.scalef32
// KERNELS: llvm.call_intrinsic "llvm.amdgcn.perm"
// KERNELS: rocdl.cvt.pk.f32.fp8
// KERNELS: amdgpu.mfma 16x16x16 %{{.*}} * %{{.*}} + %{{.*}} : vector<4xbf16>, vector<4xbf16>, vector<4xf32>
// KERNELS-NOT: scaled_mfma
// KERNELS-LABEL: @both_scaled(
// KERNELS-NOT: linalg
// KERNELS: flow.dispatch @mxc_mxfp4_mxfp8e4m3_1x32x64x128
// KERNELS-NOT: linalg
// KERNELS: return

// The same in waves of 32.
// WMMA: workgroup_size = [32, 1, 1] subgroup_size = 32
// WMMA: llvm.call_intrinsic "llvm.amdgcn.perm"
// WMMA: amdgpu.wmma 16x16x16 %{{.*}} * %{{.*}} + %{{.*}} : vector<8xbf16>, vector<8xbf16>, vector<8xf32>
// WMMA-NOT: scaled_wmma
// WMMA-LABEL: @both_scaled(

// Both halves of a wave have whole rows, and weights are given in the order that makes columns consecutive.
// TWICE: workgroup_size = [32, 1, 1] subgroup_size = 32
// TWICE: amdgpu.wmma 16x16x16 %{{.*}} * %{{.*}} + %{{.*}} : vector<16xbf16>, vector<16xbf16>, vector<8xf32>
// TWICE-LABEL: @both_scaled(

// An instruction that takes scales: two of a step of eight blocks, by the lanes of each group.
// SCALED: amdgpu.scaled_wmma 16x16x128 (%{{.*}} * %{{.*}}) * (%{{.*}} * %{{.*}}) + %{{.*}} a_first_scale_lane = 0 b_first_scale_lane = 0 : vector<4xf8E8M0FNU>, vector<64xf8E4M3FN>, vector<4xf8E8M0FNU>, vector<64xf4E2M1FN>, vector<8xf32>
// SCALED: amdgpu.scaled_wmma {{.*}} a_first_scale_lane = 16 b_first_scale_lane = 16
// SCALED-LABEL: @both_scaled(
func.func @both_scaled(%a: tensor<32x4x32xf4E2M1FN>, %as: tensor<32x4xf8E8M0FNU>, %b: tensor<64x4x32xf8E4M3FN>, %bs: tensor<64x4xf8E8M0FNU>) -> tensor<32x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<32x64xf32>) -> tensor<32x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%a, %b, %as, %bs : tensor<32x4x32xf4E2M1FN>, tensor<64x4x32xf8E4M3FN>, tensor<32x4xf8E8M0FNU>, tensor<64x4xf8E8M0FNU>) outs(%acc : tensor<32x64xf32>) {
  ^bb0(%p: f4E2M1FN, %q: f8E4M3FN, %ps: f8E8M0FNU, %qs: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %p, %ps : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %q, %qs : f8E4M3FN, f8E8M0FNU to f32
    %t = arith.mulf %l, %r : f32
    %u = arith.addf %o, %t : f32
    linalg.yield %u : f32
  } -> tensor<32x64xf32>
  func.return %y : tensor<32x64xf32>
}

// A scale for 8 elements is left to IREE: one dispatch, lanes decode in registers.
// FORM-LABEL: @accumulates
// FORM: flow.dispatch.region -> (tensor<32x64xf32>) {
// FORM: linalg.generic
// FORM: flow.return
// LOWER: thread = [2, 1, 0, 0], workgroup = [2, 64, 0, 0]
// LOWER-LABEL: @accumulates(
// LOWER: arith.scaling_extf
func.func @accumulates(%a: tensor<32x16x8xf4E2M1FN>, %as: tensor<32x16xf8E8M0FNU>, %b: tensor<64x16x8xf4E2M1FN>, %bs: tensor<64x16xf8E8M0FNU>) -> tensor<32x64xf32> {
  %acc = arith.constant dense<0.0> : tensor<32x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%a, %b, %as, %bs : tensor<32x16x8xf4E2M1FN>, tensor<64x16x8xf4E2M1FN>, tensor<32x16xf8E8M0FNU>, tensor<64x16xf8E8M0FNU>) outs(%acc : tensor<32x64xf32>) {
  ^bb0(%p: f4E2M1FN, %q: f4E2M1FN, %ps: f8E8M0FNU, %qs: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %p, %ps : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %q, %qs : f4E2M1FN, f8E8M0FNU to f32
    %t = arith.mulf %l, %r : f32
    %u = arith.addf %o, %t : f32
    linalg.yield %u : f32
  } -> tensor<32x64xf32>
  func.return %y : tensor<32x64xf32>
}
