// RUN: mxc opt %s --target gfx950 --to normalize | filecheck %s --check-prefix=NORMALIZE
// RUN: mxc opt %s --target gfx950 --to kernels | filecheck %s --check-prefix=KERNELS
// RUN: mxc opt %s --target gfx950 --print-kernels | filecheck %s --check-prefix=NESTS
// RUN: mxc opt %s --target gfx950 --to normalize --print-kernels | filecheck %s --check-prefix=NONE

// NESTS: // @mxc_mxfp4_mxfp4_1x32x64x128: emitted directly, not in the kernel language (docs/kernels.md)
// NONE: // no kernels of mxc after these passes: IREE compiles the program

// Both sides scaled, operands as a frontend has them: (a, a_scale, b, b_scale). With this order
// IREE selects no scaled matrix instruction.

// NORMALIZE-LABEL: @both_scaled
// NORMALIZE: linalg.generic {{.*}} ins(%arg0, %arg2, %arg1, %arg3 : tensor<32x4x32xf4E2M1FN>, tensor<64x4x32xf4E2M1FN>, tensor<32x4xf8E8M0FNU>, tensor<64x4xf8E8M0FNU>)
// NORMALIZE-COUNT-2: arith.scaling_extf
// NORMALIZE: arith.mulf
// NORMALIZE-NEXT: arith.addf

// Scaled matrix instructions on what the canonical form has, in one dispatch.
// KERNELS: stream.executable private @mxc_mxfp4_mxfp4_1x32x64x128 {
// KERNELS: amdgpu.scaled_mfma
// KERNELS-LABEL: @both_scaled(
// KERNELS-NOT: linalg
// KERNELS: flow.dispatch @mxc_mxfp4_mxfp4_1x32x64x128
// KERNELS-NOT: linalg
func.func @both_scaled(%a: tensor<32x4x32xf4E2M1FN>, %as: tensor<32x4xf8E8M0FNU>, %b: tensor<64x4x32xf4E2M1FN>, %bs: tensor<64x4xf8E8M0FNU>) -> tensor<32x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<32x64xf32>) -> tensor<32x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%a, %as, %b, %bs : tensor<32x4x32xf4E2M1FN>, tensor<32x4xf8E8M0FNU>, tensor<64x4x32xf4E2M1FN>, tensor<64x4xf8E8M0FNU>) outs(%acc : tensor<32x64xf32>) {
  ^bb0(%p: f4E2M1FN, %ps: f8E8M0FNU, %q: f4E2M1FN, %qs: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %p, %ps : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %q, %qs : f4E2M1FN, f8E8M0FNU to f32
    %t = arith.mulf %l, %r : f32
    %u = arith.addf %o, %t : f32
    linalg.yield %u : f32
  } -> tensor<32x64xf32>
  func.return %y : tensor<32x64xf32>
}
