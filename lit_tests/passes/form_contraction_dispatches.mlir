// RUN: mxc opt %s --split-input-file --passes mxc-form-contraction-dispatches | filecheck %s

// The gathers of weights, scales and bias, the zero and the epilogue go into the region; the
// activations and what unpacks the weights stay outside.
// CHECK-LABEL: @gathered
// CHECK: %[[W:.*]] = flow.tensor.bitcast
// CHECK: %[[X:.*]] = linalg.generic
// CHECK-NOT: iree_linalg_ext.gather
// CHECK: %[[R:.*]] = flow.dispatch.region -> (tensor<3x4x8xf32>) {
// CHECK: %[[GW:.*]] = iree_linalg_ext.gather {{.*}} ins(%[[W]], %arg3
// CHECK: %[[GS:.*]] = iree_linalg_ext.gather {{.*}} ins(%arg2, %arg3
// CHECK: %[[ZERO:.*]] = linalg.fill
// CHECK: %[[Y:.*]] = linalg.generic {{.*}} ins(%[[X]], %[[GW]], %[[GS]] : {{.*}} outs(%[[ZERO]]
// CHECK: %[[GB:.*]] = iree_linalg_ext.gather {{.*}} ins(%arg4, %arg3
// CHECK: %[[Z:.*]] = linalg.generic {{.*}} ins(%[[Y]], %[[GB]]
// CHECK: flow.return %[[Z]]
// CHECK: return %[[R]]
#xyz = affine_map<(g, m, k, b) -> (g, m, k, b)>
func.func @gathered(%x: tensor<3x4x2x32xf32>, %w8: tensor<5x8x2x16xi8>, %s: tensor<5x8x2xf8E8M0FNU>, %ids: tensor<3xi32>, %bias: tensor<5x8xbf16>) -> tensor<3x4x8xf32> {
  %w = flow.tensor.bitcast %w8 : tensor<5x8x2x16xi8> -> tensor<5x8x2x32xf4E2M1FN>
  %ew = tensor.empty() : tensor<3x8x2x32xf4E2M1FN>
  %gw = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids : tensor<5x8x2x32xf4E2M1FN>, tensor<3xi32>) outs(%ew : tensor<3x8x2x32xf4E2M1FN>) -> tensor<3x8x2x32xf4E2M1FN>
  %es = tensor.empty() : tensor<3x8x2xf8E8M0FNU>
  %gs = iree_linalg_ext.gather dimension_map = [0] ins(%s, %ids : tensor<5x8x2xf8E8M0FNU>, tensor<3xi32>) outs(%es : tensor<3x8x2xf8E8M0FNU>) -> tensor<3x8x2xf8E8M0FNU>
  %ex = tensor.empty() : tensor<3x4x2x32xbf16>
  %xb = linalg.generic {indexing_maps = [#xyz, #xyz], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x : tensor<3x4x2x32xf32>) outs(%ex : tensor<3x4x2x32xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<3x4x2x32xbf16>
  %zero = arith.constant 0.0 : f32
  %ey = tensor.empty() : tensor<3x4x8xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%ey : tensor<3x4x8xf32>) -> tensor<3x4x8xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(g, m, n, k, b) -> (g, m, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k)>, affine_map<(g, m, n, k, b) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%xb, %gw, %gs : tensor<3x4x2x32xbf16>, tensor<3x8x2x32xf4E2M1FN>, tensor<3x8x2xf8E8M0FNU>) outs(%acc : tensor<3x4x8xf32>) {
  ^bb0(%a: bf16, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x8xf32>
  %eb = tensor.empty() : tensor<3x8xbf16>
  %gb = iree_linalg_ext.gather dimension_map = [0] ins(%bias, %ids : tensor<5x8xbf16>, tensor<3xi32>) outs(%eb : tensor<3x8xbf16>) -> tensor<3x8xbf16>
  %z = linalg.generic {
      indexing_maps = [affine_map<(g, m, n) -> (g, m, n)>, affine_map<(g, m, n) -> (g, n)>, affine_map<(g, m, n) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y, %gb : tensor<3x4x8xf32>, tensor<3x8xbf16>) outs(%ey : tensor<3x4x8xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %f = arith.extf %b : bf16 to f32
    %t = arith.addf %a, %f : f32
    linalg.yield %t : f32
  } -> tensor<3x4x8xf32>
  func.return %z : tensor<3x4x8xf32>
}

// -----

// Dynamic rows: the size of the region's result comes from the activations. A result that is read
// twice has no epilogue.
// CHECK-LABEL: @read_twice
// CHECK: %[[M:.*]] = tensor.dim %arg0, %{{.*}} : tensor<?x2x32xf32>
// CHECK: %[[R:.*]] = flow.dispatch.region -> (tensor<?x8xf32>{%[[M]]}) {
// CHECK: %[[Y:.*]] = linalg.generic
// CHECK-NEXT: ^bb0
// CHECK: flow.return %[[Y]]
// CHECK: math.absf
// CHECK: math.exp
func.func @read_twice(%x: tensor<?x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<?x8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<?x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x8xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<?x8xf32>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %t = math.absf %a : f32
    linalg.yield %t : f32
  } -> tensor<?x8xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<?x8xf32>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %t = math.exp %a : f32
    linalg.yield %t : f32
  } -> tensor<?x8xf32>
  func.return %1, %2 : tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// An elementwise reader in another block is no epilogue: the contraction stays where it runs once.
// CHECK-LABEL: @read_in_a_loop
// CHECK: %[[R:.*]] = flow.dispatch.region -> (tensor<4x8xf32>) {
// CHECK: arith.scaling_extf
// CHECK: flow.return
// CHECK: scf.for
// CHECK-NOT: flow.dispatch.region
// CHECK: linalg.generic {{.*}} ins(%[[R]]
func.func @read_in_a_loop(%x: tensor<4x2x32xbf16>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %n: index) -> tensor<4x8xf32> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %ey = tensor.empty() : tensor<4x8xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%ey : tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xbf16>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: bf16, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  %sum = scf.for %i = %c0 to %n step %c1 iter_args(%last = %ey) -> (tensor<4x8xf32>) {
    %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
        ins(%y : tensor<4x8xf32>) outs(%last : tensor<4x8xf32>) {
    ^bb0(%a: f32, %o: f32):
      %t = arith.addf %a, %o : f32
      linalg.yield %t : f32
    } -> tensor<4x8xf32>
    scf.yield %z : tensor<4x8xf32>
  }
  func.return %sum : tensor<4x8xf32>
}
