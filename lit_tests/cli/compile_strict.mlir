// RUN: rm -rf %t.mxc %t.dump
// RUN: not mxc compile %s --target gfx942 --output %t.mxc --strict 2>&1 | filecheck %s --check-prefix=STRICT
// RUN: not test -e %t.mxc
// RUN: mxc compile %s --target gfx942 --output %t.mxc --dump-ir %t.dump 2>&1 | filecheck %s
// RUN: mxc opt %t.dump/*-iree-flow.mlir --passes canonicalize | filecheck %s --check-prefix=FLOW
// RUN: mxc report %t.mxc --json | filecheck %s --check-prefix=REPORT
// RUN: not mxc compile %s --target gfx942 --output %t.mxc 2>&1 | filecheck %s --check-prefix=EXISTS
// RUN: not mxc compile %s --target gfx9500 --output %t.other 2>&1 | filecheck %s --check-prefix=UNKNOWN

// STRICT: error: 1 of 1 contractions fell back on gfx942, which --strict refuses: no kernel of mxc computes it: a scale is for 8 elements; kernels take powers of two from 16 on; gfx942 has no block-scaled instruction

// CHECK: reading
// CHECK-NEXT: building
// CHECK-NEXT: passes normalize
// CHECK: IREE flow
// CHECK-NEXT: passes verify-weights
// CHECK: IREE end
// CHECK: f32 x f4E2M1FN with f8E8M0FNU per 8 -> f32
// CHECK: [1] no kernel of mxc computes it: a scale is for 8 elements; kernels take powers
// CHECK: gfx942 has no block-scaled instruction
// CHECK: wrote {{.*}}.mxc

// The weights reach the one dispatch as bytes.
// FLOW: flow.dispatch @
// FLOW-SAME: tensor<64x8x4xi8>
// FLOW-NOT: flow.dispatch @

// REPORT: "lowering": "v_{{.*}}fma
// REPORT: "steps"

// EXISTS: exists; give --force to replace it, or another --output
// UNKNOWN: unknown target 'gfx9500' (did you mean 'gfx950'?)
func.func @main(%x: tensor<4x64xf32>, %b: tensor<64x8x4xi8>, %t: tensor<64x8xi8>) -> tensor<4x64xf32> {
  %w = flow.tensor.bitcast %b : tensor<64x8x4xi8> -> tensor<64x8x8xf4E2M1FN>
  %s = flow.tensor.bitcast %t : tensor<64x8xi8> -> tensor<64x8xf8E8M0FNU>
  %e = tensor.empty() : tensor<64x8x8xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, a, b) -> (n, a, b)>, affine_map<(n, a, b) -> (n, a)>, affine_map<(n, a, b) -> (n, a, b)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<64x8x8xf4E2M1FN>, tensor<64x8xf8E8M0FNU>) outs(%e : tensor<64x8x8xf32>) {
  ^bb0(%q: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %q, %c : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<64x8x8xf32>
  %f = tensor.collapse_shape %d [[0], [1, 2]] : tensor<64x8x8xf32> into tensor<64x64xf32>
  // No kernel of ours takes a scale for eight elements.
  %z = arith.constant 0.0 : f32
  %g = tensor.empty() : tensor<4x64xf32>
  %i = linalg.fill ins(%z : f32) outs(%g : tensor<4x64xf32>) -> tensor<4x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %f : tensor<4x64xf32>, tensor<64x64xf32>) outs(%i : tensor<4x64xf32>) -> tensor<4x64xf32>
  return %r : tensor<4x64xf32>
}
