// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-gpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1201}' | filecheck %s --check-prefix=NARROW

// The residual, the sum of the experts before it, and the rounding after it are in the kernel. What
// is summed is a result, for what reads it beside the norm.
// CHECK: workgroup_size = [64, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_row_norm_of_2xD_Dx128_bf16_bf16_3727c5ac_0 {
// CHECK-COUNT-2: memref.load %{{.*}} : memref<?x2xi32,
// CHECK-COUNT-2: memref.load %{{.*}} : memref<?x2xf32,
// CHECK: vector.load %{{.*}} : memref<?x128xf32,
// CHECK: vector.store %{{.*}} : memref<?x128xf32,
// CHECK: amdgpu.dpp %{{.*}} row_mirror
// CHECK: amdgpu.lds_barrier
// CHECK: math.sqrt
// CHECK: arith.truncf
// CHECK: vector.store %{{.*}} : memref<?x128xbf16,
// CHECK-LABEL: util.func public @experts(
// CHECK: %[[WEIGHT:.*]] = util.global.load @weight
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_row_norm_of_2xD_Dx128_bf16_bf16_3727c5ac_0::@{{.*}}(%arg3, %arg0, %arg1, %arg2, %[[WEIGHT]], %{{.*}}, %{{.*}}) : ({{.*}}) -> (tensor<?x128xf32>{%{{.*}}}, tensor<?x128xbf16>{%{{.*}}})
// CHECK-NOT: util.call
// CHECK: util.return %[[MADE]]#0, %[[MADE]]#1
// NARROW: workgroup_size = [64, 1, 1] subgroup_size = 32
util.global private @weight : tensor<128xbf16>
util.func private @mxc.sum_experts(%rows: tensor<?x128xf32>, %shares: tensor<?x2xf32>, %slots: tensor<?x2xi32>) -> tensor<?x128xf32> attributes {mxc.operation = "sum_experts", mxc.options = {}, mxc.sizes = array<i64: 1, 0>} {
  util.return %rows : tensor<?x128xf32>
}
util.func private @mxc.row_norm(%x: tensor<?x128xf32>, %w: tensor<128xbf16>) -> tensor<?x128xf32> attributes {mxc.operation = "row_norm", mxc.options = {epsilon = 1.0e-5 : f32, offset = 0.0 : f32}, mxc.sizes = array<i64: 0, 0>} {
  util.return %x : tensor<?x128xf32>
}
util.func public @experts(%rows: tensor<?x128xf32>, %shares: tensor<?x2xf32>, %slots: tensor<?x2xi32>, %residual: tensor<?x128xf32>) -> (tensor<?x128xf32>, tensor<?x128xbf16>) {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %residual, %c0 : tensor<?x128xf32>
  %summed = util.call @mxc.sum_experts(%rows, %shares, %slots) : (tensor<?x128xf32>, tensor<?x2xf32>, tensor<?x2xi32>) -> tensor<?x128xf32>
  %e = tensor.empty(%n) : tensor<?x128xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%residual, %summed : tensor<?x128xf32>, tensor<?x128xf32>) outs(%e : tensor<?x128xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %1 = arith.addf %a, %b : f32
    linalg.yield %1 : f32
  } -> tensor<?x128xf32>
  %w = util.global.load @weight : tensor<128xbf16>
  %normed = util.call @mxc.row_norm(%x, %w) : (tensor<?x128xf32>, tensor<128xbf16>) -> tensor<?x128xf32>
  %r = tensor.empty(%n) : tensor<?x128xbf16>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%normed : tensor<?x128xf32>) outs(%r : tensor<?x128xbf16>) {
  ^bb0(%a: f32, %out: bf16):
    %1 = arith.truncf %a : f32 to bf16
    linalg.yield %1 : bf16
  } -> tensor<?x128xbf16>
  util.return %x, %y : tensor<?x128xf32>, tensor<?x128xbf16>
}

// -----

// A row of which lanes have no column, in several turns; f32 where more than a rounding reads it.
// CHECK: workgroup_size = [1024, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_row_norm_3x5000_f32_f32_358637bd_3f800000 {
// CHECK: scf.if
// CHECK-LABEL: util.func public @plain(
// CHECK: %[[MADE:.*]] = flow.dispatch @mxc_row_norm_3x5000_f32_f32_358637bd_3f800000::@{{.*}}(%arg0, %arg1)
// CHECK: util.return %[[MADE]]
util.func private @mxc.row_norm(%x: tensor<3x5000xf32>, %w: tensor<5000xf32>) -> tensor<3x5000xf32> attributes {mxc.operation = "row_norm", mxc.options = {epsilon = 1.0e-6 : f32, offset = 1.0 : f32}, mxc.sizes = array<i64>} {
  util.return %x : tensor<3x5000xf32>
}
util.func public @plain(%x: tensor<3x5000xf32>, %w: tensor<5000xf32>) -> tensor<3x5000xf32> {
  %0 = util.call @mxc.row_norm(%x, %w) : (tensor<3x5000xf32>, tensor<5000xf32>) -> tensor<3x5000xf32>
  util.return %0 : tensor<3x5000xf32>
}

// -----

// CHECK-LABEL: util.func public @left(
// CHECK: util.call @mxc.row_norm({{.*}}) {mxc.contraction = {reason = "rows have 30 elements; kernels take multiples of 4 up to 32768"}}
util.func private @mxc.row_norm(%x: tensor<3x30xf32>, %w: tensor<30xf32>) -> tensor<3x30xf32> attributes {mxc.operation = "row_norm", mxc.options = {epsilon = 1.0e-6 : f32, offset = 0.0 : f32}, mxc.sizes = array<i64>} {
  util.return %x : tensor<3x30xf32>
}
util.func public @left(%x: tensor<3x30xf32>, %w: tensor<30xf32>) -> tensor<3x30xf32> {
  %0 = util.call @mxc.row_norm(%x, %w) : (tensor<3x30xf32>, tensor<30xf32>) -> tensor<3x30xf32>
  util.return %0 : tensor<3x30xf32>
}

// -----

// A router that reads the rounded norm alone is in the kernel, which stores nothing else then. The
// dispatch says what product it has.
// CHECK: stream.executable private @mxc_row_norm_3x128_f32_358637bd_0_top_2_of_8_bf16_rounded {
// CHECK: memref.alloc() : memref<128xf32, #gpu.address_space<workgroup>>
// CHECK: scf.for
// CHECK: math.fma {{.*}} : vector<8xf32>
// CHECK: amdgpu.dpp %{{.*}} row_mirror
// CHECK: amdgpu.lds_barrier
// CHECK: arith.cmpf oeq
// CHECK: rocdl.exp2
// CHECK: memref.store %{{.*}} : memref<3x2xf32,
// CHECK-LABEL: util.func public @routed(
// CHECK: %[[ROUTER:.*]] = util.global.load @router
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_row_norm_3x128_{{.*}}(%arg0, %arg1, %[[ROUTER]]) {mxc.contraction = {{{.*}}k = 128 : i64, kind = "multiply-add", lhs = {element = bf16}, m = 3 : i64, n = 8 : i64{{.*}}}} : ({{.*}}) -> (tensor<3x2xf32>, tensor<3x2xi32>)
// CHECK: util.return %[[MADE]]#0, %[[MADE]]#1
util.global private @router : tensor<8x128xbf16>
util.func private @mxc.row_norm(%x: tensor<3x128xf32>, %w: tensor<128xf32>) -> tensor<3x128xf32> attributes {mxc.operation = "row_norm", mxc.options = {epsilon = 1.0e-6 : f32, offset = 0.0 : f32}, mxc.sizes = array<i64>} {
  util.return %x : tensor<3x128xf32>
}
util.func private @mxc.route(%x: tensor<3x128xbf16>, %w: tensor<8x128xbf16>) -> (tensor<3x2xf32>, tensor<3x2xi32>) attributes {mxc.operation = "route", mxc.options = {}, mxc.sizes = array<i64>} {
  %s = tensor.empty() : tensor<3x2xf32>
  %e = tensor.empty() : tensor<3x2xi32>
  util.return %s, %e : tensor<3x2xf32>, tensor<3x2xi32>
}
util.func public @routed(%x: tensor<3x128xf32>, %w: tensor<128xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>) {
  %normed = util.call @mxc.row_norm(%x, %w) : (tensor<3x128xf32>, tensor<128xf32>) -> tensor<3x128xf32>
  %r = tensor.empty() : tensor<3x128xbf16>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%normed : tensor<3x128xf32>) outs(%r : tensor<3x128xbf16>) {
  ^bb0(%a: f32, %out: bf16):
    %1 = arith.truncf %a : f32 to bf16
    linalg.yield %1 : bf16
  } -> tensor<3x128xbf16>
  %router = util.global.load @router : tensor<8x128xbf16>
  %0:2 = util.call @mxc.route(%y, %router) : (tensor<3x128xbf16>, tensor<8x128xbf16>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
  util.return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xi32>
}

// -----

// CHECK-LABEL: util.func public @unnormed(
// CHECK: util.call @mxc.route({{.*}}) {mxc.contraction = {reason = "it reads no norm that a kernel computes"}}
util.func private @mxc.route(%x: tensor<3x128xf32>, %w: tensor<8x128xbf16>) -> (tensor<3x2xf32>, tensor<3x2xi32>) attributes {mxc.operation = "route", mxc.options = {}, mxc.sizes = array<i64>} {
  %s = tensor.empty() : tensor<3x2xf32>
  %e = tensor.empty() : tensor<3x2xi32>
  util.return %s, %e : tensor<3x2xf32>, tensor<3x2xi32>
}
util.func public @unnormed(%x: tensor<3x128xf32>, %w: tensor<8x128xbf16>) -> (tensor<3x2xf32>, tensor<3x2xi32>) {
  %0:2 = util.call @mxc.route(%x, %w) : (tensor<3x128xf32>, tensor<8x128xbf16>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
  util.return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xi32>
}
