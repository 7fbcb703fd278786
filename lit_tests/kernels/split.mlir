// RUN: mxc opt %s --target gfx950 --to kernels | filecheck %s

// K in two splits of 128 blocks, by a schedule that is given: the third number of workgroups.
// CHECK: stream.executable private @mxc_bf16_mxfp4_1x128x8192x8192 {
// CHECK: stream.return %{{.*}}, %{{.*}}, %[[SPLITS:.*]] : index, index, index
// Counters come with the call; the parts of all splits are a result.
// CHECK: func.func @mxc_bf16_mxfp4_1x128x8192x8192(%arg0: !stream.binding, %arg1: !stream.binding, %arg2: !stream.binding, %arg3: !stream.binding, %arg4: !stream.binding, %arg5: !stream.binding)
// CHECK: memref<4096xi32
// CHECK: memref<2097152xf32

// A wave leaves its sums, writes them back from its L2, and counts. The last one reads all parts.
// CHECK: vector.store %{{.*}} : memref<?xf32, #amdgpu.address_space<fat_raw_buffer>>, vector<4xf32>
// CHECK: llvm.fence syncscope("agent") release
// CHECK: llvm.atomicrmw add %{{.*}} syncscope("agent") monotonic
// CHECK: rocdl.readfirstlane
// CHECK: scf.if
// CHECK: llvm.fence syncscope("agent") acquire
// CHECK: memref.store %{{.*}} : memref<4096xi32
// CHECK: vector.load %{{.*}} : memref<?xf32, #amdgpu.address_space<fat_raw_buffer>>, vector<4xf32>
// CHECK: arith.addf %{{.*}} : vector<4xf32>

// One product counts after the other: the counters are zeros again by then.
// CHECK: func.func @both(
// CHECK: %[[ZEROS:.*]] = flow.tensor.splat %{{.*}} : tensor<4096xi32>
// CHECK: %[[FIRST:.*]]:3 = flow.dispatch @mxc_bf16_mxfp4_1x128x8192x8192::@mxc_bf16_mxfp4_1x128x8192x8192(%{{.*}}, %{{.*}}, %{{.*}}, %[[ZEROS]]) {{.*}} -> (tensor<128x8192xf32>, tensor<2097152xf32>, %[[ZEROS]])
// CHECK: flow.dispatch @mxc_bf16_mxfp4_1x128x8192x8192::@mxc_bf16_mxfp4_1x128x8192x8192(%{{.*}}, %{{.*}}, %{{.*}}, %[[FIRST]]#2) {{.*}} -> (tensor<128x8192xf32>, tensor<2097152xf32>, %[[FIRST]]#2)
func.func @both(%x: tensor<128x256x32xbf16>, %w: tensor<8192x256x32xf4E2M1FN>, %s: tensor<8192x256xf8E8M0FNU>, %v: tensor<8192x256x32xf4E2M1FN>, %t: tensor<8192x256xf8E8M0FNU>) -> (tensor<128x8192xf32>, tensor<128x8192xf32>) {
  %none = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<128x8192xf32>
  %zero = linalg.fill ins(%none : f32) outs(%empty : tensor<128x8192xf32>) -> tensor<128x8192xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"],
      mxc.schedule = {instruction = 32 : i64, tiles = array<i64: 1, 2>, waves = array<i64: 2, 2, 1>, transport = "ring", stages = 4 : i64, k_steps = 1 : i64, splits = 2 : i64}}
      ins(%x, %w, %s : tensor<128x256x32xbf16>, tensor<8192x256x32xf4E2M1FN>, tensor<8192x256xf8E8M0FNU>) outs(%zero : tensor<128x8192xf32>) {
  ^bb0(%a: bf16, %e: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.scaling_extf %e, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<128x8192xf32>
  %z = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"],
      mxc.schedule = {instruction = 32 : i64, tiles = array<i64: 1, 2>, waves = array<i64: 2, 2, 1>, transport = "ring", stages = 4 : i64, k_steps = 1 : i64, splits = 2 : i64}}
      ins(%x, %v, %t : tensor<128x256x32xbf16>, tensor<8192x256x32xf4E2M1FN>, tensor<8192x256xf8E8M0FNU>) outs(%zero : tensor<128x8192xf32>) {
  ^bb0(%a: bf16, %e: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.scaling_extf %e, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<128x8192xf32>
  return %y, %z : tensor<128x8192xf32>, tensor<128x8192xf32>
}
